package pitch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/chunkstore"
)

// With keep= in the site's configuration, the datasets of a job stay on the node for a while, in
//
//	<store>/.kept.<uid>.<expiry>.<jobid>.<restart>   0700, the user's; expiry in seconds since 1970
//
// The daemon makes it, as chunkstore.KeepDir of its store; root renames it when the job ends, and into
// the store of the next job of the same user. The prolog of any other user's job removes it, and so
// does each prolog and epilog after its expiry. The names are root's, what is below is the user's:
// root renames it and wipes it, and opens nothing in it.
var keptName = regexp.MustCompile(`^\.kept\.([0-9]{1,10})\.([0-9]{1,18})\.([1-9][0-9]{0,9}\.[0-9]{1,10})$`)

// keepSets renames what the daemons of a job have left in its stores for the next job. What is not
// renamed goes with the store.
func keepSets(p place) {
	if p.site.Keep <= 0 {
		return
	}
	until := time.Now().Add(time.Duration(p.site.Keep)).Unix()
	for _, store := range p.allStores() {
		_ = keepSet(store, until) // then the next job stages in as always
	}
}

func keepSet(store string, until int64) error {
	top, err := os.Open(filepath.Dir(store))
	if err != nil {
		return err
	}
	defer top.Close()
	dir, err := openDir(int(top.Fd()), filepath.Base(store))
	if err != nil {
		return err
	}
	defer dir.Close()
	set, err := openDir(int(dir.Fd()), chunkstore.KeepDir)
	if err != nil {
		return err
	}
	defer set.Close()
	var owner, st unix.Stat_t
	if err := errors.Join(unix.Fstat(int(dir.Fd()), &owner), unix.Fstat(int(set.Fd()), &st)); err != nil {
		return err
	}
	if owner.Uid == 0 || st.Uid != owner.Uid || st.Dev != owner.Dev {
		return fmt.Errorf("%s: not a user's: %w", chunkstore.KeepDir, unix.EPERM)
	}
	if err := unix.Fchmod(int(set.Fd()), 0o700); err != nil {
		return err
	}
	name := fmt.Sprintf(".kept.%d.%d.%s", owner.Uid, until, filepath.Base(store))
	return unix.Renameat2(int(dir.Fd()), chunkstore.KeepDir, int(top.Fd()), name, unix.RENAME_NOREPLACE)
}

// sweepKept removes what earlier jobs have kept, unless spare says otherwise. It returns what it
// could not remove.
func sweepKept(ctx context.Context, site Site, spare func(store, name, uid, job string) bool) (left []string) {
	now := time.Now().Unix()
	for _, store := range site.Store {
		entries, err := os.ReadDir(store)
		if err != nil {
			continue // no store, nothing in it
		}
		for _, e := range entries {
			m := keptName.FindStringSubmatch(e.Name())
			if m == nil {
				continue
			}
			until, _ := strconv.ParseInt(m[2], 10, 64) // digits only
			if site.Keep > 0 && now < until && spare(store, e.Name(), m[1], m[3]) {
				continue
			}
			if err := wipe(ctx, filepath.Join(store, e.Name())); err != nil {
				left = append(left, oneLine(err.Error()))
			}
		}
	}
	return left
}

// expireKept removes what was kept for long enough.
func expireKept(ctx context.Context, site Site) []string {
	return sweepKept(ctx, site, func(_, _, _, _ string) bool { return true })
}

// clearKept removes what is kept for others than the job's user: the job may need the room. If a
// store is nearly full, it removes all.
func (p *prolog) clearKept(ctx context.Context) {
	uid := strconv.FormatUint(uint64(p.job.uid), 10)
	left := sweepKept(ctx, p.site, func(store, _, owner, _ string) bool {
		var fs unix.Statfs_t
		return owner == uid && unix.Statfs(store, &fs) == nil && fs.Bavail*uint64(fs.Bsize) >= 2*minFree
	})
	for _, l := range left {
		p.env.say(p.place.job, "could not remove what an earlier job has kept: %s", l)
	}
}

// giveKept moves what clearKept has left into the store directories of the job, which were just made.
func (p *prolog) giveKept(ctx context.Context) {
	sweepKept(ctx, p.site, func(store, name, _, job string) bool {
		to := filepath.Join(store, fmt.Sprintf("%s.%d", p.place.job, p.job.restart), chunkstore.KeptPrefix+job)
		return unix.Renameat2(unix.AT_FDCWD, filepath.Join(store, name), unix.AT_FDCWD, to, unix.RENAME_NOREPLACE) == nil
	})
}
