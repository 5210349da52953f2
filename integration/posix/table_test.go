package posix

import (
	"os"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/integration/testcluster"
)

// row is a row of the table; here and there are one directory on the mounts of two nodes.
type row struct {
	operation string // as in the table
	test      func(t *testing.T, c *camp, here, there string)
}

// rows has every row of the table of semantics in the package comment of
// fsclient/mount, in its order. The last ones take nodes down.
var rows = []row{
	{"sealed realm", sealedRealm},
	{"open, read", openRead},
	{"shared mapping", mappings},
	{"write", write},
	{"O_APPEND", appends},
	{"O_EXCL, mkdir, link, symlink", oneWins},
	{"O_TMPFILE", tmpfile},
	{"names", namesRow},
	{"attributes", attributes},
	{"xattr", xattrs},
	{"trusted., security. xattr", rootXattrs},
	{"POSIX ACL", acls},
	{"chattr, lsattr", inodeFlags},
	{"user.bivouac.layout and .chunk", layouts},
	{"user.bivouac.copies", copies},
	{"truncate", truncate},
	{"fallocate", fallocate},
	{"SEEK_DATA, HOLE", seekHoles},
	{"FIEMAP", fiemap},
	{"copy_file_range", copyRange},
	{"O_DIRECT, O_SYNC", direct},
	{"st_blocks", blocks},
	{"rename", rename},
	{"rename of a directory", renameDirectory},
	{"unlink, rename over a file", unlinkOpen},
	{"rmdir of an open directory", rmdirOpen},
	{"mtime, ctime", changeTimes},
	{"atime", accessTime},
	{"readdir", readdir},
	{"a directory of very many entries", wide},
	{"fsync", fsync},
	{"statfs", statfs},
	{"flock, fcntl", locks},
	{"signals", signals},
	{"a node is down", nodeDown},
}

// TestTable runs the rows.
func TestTable(t *testing.T) {
	c := pitch(t, testcluster.Config{Capacity: 4 << 30, SplitAt: 500, Datasets: []job.Dataset{staged(t)}})
	c.sealed(t)
	for _, r := range rows {
		t.Run(r.operation, func(t *testing.T) {
			dirs := c.dirs(t)
			r.test(t, c, dirs[0], dirs[1])
		})
	}
}

// TestTableIsTested: the document and the tests have the same rows.
func TestTableIsTested(t *testing.T) {
	text, err := os.ReadFile("../../fsclient/mount/doc.go")
	check(t, err)
	var tested []string
	for _, r := range rows {
		tested = append(tested, strings.Fields(r.operation)...)
	}
	documented := operations(string(text))
	for i := range max(len(documented), len(tested)) {
		if i >= len(documented) || i >= len(tested) || documented[i] != tested[i] {
			t.Fatalf("the table has %q, the tests have %q", documented[min(i, len(documented)):], tested[min(i, len(tested)):])
		}
	}
}

// operations returns the words in the first column of the table.
func operations(text string) (words []string) {
	_, table, _ := strings.Cut(text, "//\toperation ")
	width := len("operation ") + strings.Index(table, "promise")
	for line := range strings.Lines(table) {
		line, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "//\t")
		if ok && !strings.HasPrefix(line, "---") {
			words = append(words, strings.Fields(line[:min(width, len(line))])...)
		}
		if !ok && len(words) > 0 {
			return words
		}
	}
	return words
}

func TestOperations(t *testing.T) {
	const text = "// words\n//\n//\toperation  promise\n//\t---------  -------\n//\tone, two   what is\n//\tthree      promised\n//\tfour       no more\n//\n//\tno row     x\n"
	if got := strings.Join(operations(text), " "); got != "one, two three four" {
		t.Errorf("operations = %q", got)
	}
}
