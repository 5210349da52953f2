package posix

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/integration/testcluster"
)

// program runs real programs in one directory on two nodes.
type program struct {
	name   string
	needs  []string
	script string // in a shell; $here and $there are the directory on two nodes
	want   string // the expected output
}

var programs = []program{
	{"git", []string{"git"}, gitScript, "4 of-one\n 4 of-two\n9"},
	{"tar", []string{"tar"}, tarScript, "same\n2\n751\na/1/b/1\nt.tar"},
	{"rsync", []string{"rsync"}, rsyncScript, "2"},
	{"sqlite", []string{"sqlite3"}, sqliteScript, "ok\na|20|210\nb|20|210"},
	{"sqlite-wal", []string{"/usr/bin/python3"}, walScript, "refused\nnothing lost\n80 ok\nhanded over"},
	{"python", []string{"/usr/bin/python3"}, venvScript, "pip\nTrue\n190\nb'\\x07\\x07\\x07\\x07\\x07abc\\x07'\nequal"},
	{"make", []string{"make", "gcc", "ar"}, makeScript, "78\n178\n1"},
}

// gitScript has two nodes push to one repository concurrently.
const gitScript = `
export GIT_CONFIG_GLOBAL=$here/config GIT_CONFIG_NOSYSTEM=1
printf '[user]\nname = a\nemail = a@b\n[init]\ndefaultBranch = main\n[safe]\ndirectory = *\n[pull]\nrebase = true\n' >$here/config
git init -q --bare $here/repo.git
git clone -q $there/repo.git $there/one 2>/dev/null
cd $there/one
for i in $(seq 100); do mkdir -p d$((i % 7)); seq $i >d$((i % 7))/f$i; done
git add . && git commit -qm first && git push -q origin HEAD
git clone -q $here/repo.git $here/two
push() { # directory, name
	cd $1
	for i in 1 2 3 4; do
		echo $2 >>$2; git add $2; git commit -qm "$2 $i"
		until git push -q origin HEAD 2>/dev/null; do git pull -q 2>/dev/null || true; done
	done
}
(push $there/one of-one) & (push $here/two of-two) & wait
cd $here/two && git pull -q && git fsck --strict 2>/dev/null && git gc -q && cd $there/one && git pull -q && git status --porcelain
cat $there/one/of-two $there/one/of-one | sort | uniq -c | tr -s ' '
git -C $there/repo.git log --oneline | wc -l`

// tarScript packs on one node the tree that was unpacked on the other.
const tarScript = `
mkdir $here/in && cd $here/in
for i in $(seq 150); do mkdir -p a/$((i % 9))/b; seq $((i * 20)) >a/$((i % 9))/b/$i; done
ln a/1/b/1 hard; ln -s a/1/b/1 soft; mkdir empty; chmod 751 empty; touch -d '2001-02-03 04:05:06.789' a/2/b/2; truncate -s 1M sparse
tar cf $there/t.tar --format=pax -C $there/in .
mkdir $there/out && tar xpf $here/t.tar -C $there/out
tar df $there/t.tar -C $here/out && echo same
find $here/out -type f -links 2 | wc -l; stat -c '%a %n' $there/out/empty | cut -d' ' -f1; readlink $there/out/soft
cd $there && rm -r in out && ls`

// rsyncScript copies on one node, and finds nothing to do on the other.
const rsyncScript = `
src=$(mktemp -d); trap 'rm -r $src' EXIT
for i in $(seq 120); do mkdir -p $src/d$((i % 5)); seq $((i * 30)) >$src/d$((i % 5))/f$i; done
rsync -aHX --delete $src/ $here/copy/
rsync -aHXnic --delete $src/ $there/copy/
echo more >>$src/d1/f1; rm $src/d2/f2; ln $src/d3/f3 $src/d3/f3.link
rsync -aHX --delete --inplace $src/ $there/copy/
rsync -aHXnic --delete $src/ $here/copy/
stat -c %h $here/copy/d3/f3`

// sqliteScript has two nodes insert into one database concurrently.
const sqliteScript = `
sqlite3 $here/db 'CREATE TABLE t (who TEXT, n INTEGER, UNIQUE (who, n));'
insert() { # database, who
	for i in $(seq 20); do sqlite3 -cmd '.timeout 60000' $1 "INSERT INTO t VALUES ('$2', $i);"; done
}
insert $here/db a & a=$!
insert $there/db b & b=$!
wait $a && wait $b
sqlite3 $there/db 'PRAGMA integrity_check; SELECT who, count(*), sum(n) FROM t GROUP BY who ORDER BY who;'`

// walScript: SQLite's write-ahead log needs coherent shared mappings. Writers on one node have them; a writer on
// another node gets an error until the first ones have ended. A row whose insert succeeded is present.
const walScript = `
/usr/bin/python3 - <<-END
	import sqlite3, subprocess, sys
	writer = """if True:
	    import sqlite3, sys
	    path, who = sys.argv[1:]
	    db = sqlite3.connect(path, timeout=60, isolation_level=None)
	    for i in range(40):
	        try:
	            db.execute("INSERT INTO t VALUES (?, ?)", (who, i))
	            print(who, i)
	        except sqlite3.Error as e:
	            print("error", e)
	"""
	def write(path, who):
	    return subprocess.Popen([sys.executable, "-c", writer, path, who], stdout=subprocess.PIPE, text=True)
	def rows(path):
	    db = sqlite3.connect(path, timeout=60)
	    got = {(who, str(n)) for who, n in db.execute("SELECT who, n FROM t")}
	    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
	    db.close()
	    return got
	here, there = "$here/db", "$there/db"
	db = sqlite3.connect(here, isolation_level=None)
	assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
	db.execute("CREATE TABLE t (who TEXT, n INTEGER)")
	out = []
	for p in [write(here, "a"), write(there, "b"), write(here, "c")]:
	    out += p.communicate()[0].splitlines()
	print("refused" if any(l.startswith("error") for l in out) else "not refused")
	acknowledged = {tuple(l.split()) for l in out if not l.startswith("error")}
	lost = acknowledged - rows(here)
	print("lost", sorted(lost)) if lost else print("nothing lost")
	print(len([l for l in out if l[0] in "ac"]), db.execute("PRAGMA integrity_check").fetchone()[0])
	db.close()
	for attempt in range(200):
	    try:
	        assert acknowledged <= rows(there)
	        break
	    except sqlite3.OperationalError:
	        pass
	else:
	    print("not", end=" ")
	print("handed over")
	END`

// venvScript makes an environment on one node and uses it on the other.
const venvScript = `
python=/usr/bin/python3
$python -m venv $here/venv
$there/venv/bin/python -m pip --version | cut -d' ' -f1
$there/venv/bin/python -c 'import sys, json, sqlite3, multiprocessing; print(sys.prefix != sys.base_prefix)'
$here/venv/bin/python - <<-END
	import mmap, os, tempfile, multiprocessing, shutil
	there = "$there"
	def work(i):
	    with open(f"$here/of{i}", "wb") as f:
	        f.write(bytes([i]) * 100_000)
	    return i
	with multiprocessing.Pool(4) as p:
	    print(sum(p.map(work, range(20))))
	with open(there + "/of7", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
	    m[5:8] = b"abc"
	    m.flush()
	print(open("$here/of7", "rb").read(9))
	shutil.copytree(there + "/venv/bin", "$here/again", symlinks=True)
	with tempfile.TemporaryDirectory(dir=there) as d, tempfile.NamedTemporaryFile(dir=d) as f:
	    f.write(b"x")
	END
diff -r $here/again $there/venv/bin && echo equal; rm -r $there/again`

// makeScript compiles on both nodes concurrently, and runs on one node the program linked on the other.
const makeScript = `
mkdir $here/src && cd $here/src
for i in $(seq 12); do echo "int f$i(void) { return $i; }" >f$i.c; done
{ echo '#include <stdio.h>'; for i in $(seq 12); do echo "int f$i(void);"; done
  echo 'int main(void) { printf("%d\n", 0'; for i in $(seq 12); do echo " + f$i()"; done; echo '); return 0; }'; } >main.c
printf 'O = $(patsubst %%.c,%%.o,$(wildcard *.c))\nsum: $O\n\t$(CC) -o $@ $O\nfirst: f1.o f2.o f3.o f4.o\nsecond: f5.o f6.o f7.o f8.o\nlib: $O\n\tar rc lib.a $O\n' >Makefile
make -s -j2 -C $here/src first & make -s -j2 -C $there/src second & wait
make -s -C $there/src -j3 sum lib && $here/src/sum
sed -i 's/return 1;/return 101;/' $here/src/f1.c && make -s -C $there/src sum && $there/src/sum
make -C $here/src sum | grep -c 'up to date'`

// TestPrograms runs unmodified programs.
func TestPrograms(t *testing.T) {
	c := pitch(t, testcluster.Config{})
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			for _, need := range p.needs {
				if _, err := exec.LookPath(need); err != nil {
					t.Fatalf("%v: make packages installs it", err)
				}
			}
			dirs := c.dirs(t)
			cmd := exec.Command("bash", "-euc", p.script)
			cmd.Env = append(os.Environ(), "here="+dirs[0], "there="+dirs[1], "LC_ALL=C")
			out, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != p.want {
				t.Errorf("%v, it says:\n%s\nwant:\n%s", err, got, p.want)
			}
		})
	}
}
