package mount_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestWriteDropsSetIDs: a user's write drops setuid and setgid bits that another node set after the file was opened
// here.
func TestWriteDropsSetIDs(t *testing.T) {
	j := newJobOf(t, user)
	for p := filepath.Dir(j.dirs[0]); p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		check(t, os.Chmod(p, 0o755))
	}
	for what, command := range map[string]string{
		"write":               `exec 3<>f && chmod 6777 $E && printf z >&3`,
		"second write":        `exec 3<>f && printf z >&3 && stat f >/dev/null && chmod 6777 $E && printf z >&3`,
		"append":              `exec 3>>f && chmod 6777 $E && printf z >&3`,
		"second append":       `exec 3>>f && printf z >&3 && chmod 6777 $E && printf z >&3`,
		"append after a stat": `exec 3>>f && printf z >&3 && stat f >/dev/null && chmod 6777 $E && printf z >&3`,
	} {
		out, err := as(user, j.scratch(0), `cd $D && echo x >f && chmod 755 f && E=`+j.scratch(1, "f")+` && `+command)
		if err != nil {
			t.Fatalf("%s: %v: %s", what, err, out)
		}
		if st := stat(t, j.scratch(1, "f")); metadata.SetIDs(st.Mode) != 0 {
			t.Errorf("mode %o after a %s by the user, want no setuid and setgid", st.Mode, what)
		}
	}
	out, err := as(user, j.scratch(0), `cd $D && exec 3<>f && printf z >&3 && stat f >/dev/null && chmod 6777 `+j.scratch(1, "f"))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if st := stat(t, j.scratch(1, "f")); st.Mode != syscall.S_IFREG|0o6777 {
		t.Errorf("mode %o, set after all that was written, want setuid and setgid", st.Mode)
	}
}
