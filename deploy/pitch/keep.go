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
// root renames it and wipes it, and opens nothing in it. Root checks the directory by its descriptor
// at a place where only root can replace it.
var keptName = regexp.MustCompile(`^\.kept\.([0-9]{1,10})\.([0-9]{1,18})\.([1-9][0-9]{0,9}\.[0-9]{1,10})$`)

// keepSets renames what the daemons of a job have left in its stores for the next job. What is not
// renamed goes with the store.
func keepSets(ctx context.Context, p place) {
	if p.site.Keep <= 0 {
		return
	}
	until := time.Now().Add(time.Duration(p.site.Keep)).Unix()
	for _, store := range p.allStores() {
		_ = keepSet(ctx, store, until) // then the next job stages in as always
	}
}

func keepSet(ctx context.Context, store string, until int64) error {
	top, err := os.Open(filepath.Dir(store))
	if err != nil {
		return err
	}
	defer top.Close()
	dir, err := openUncovered(ctx, int(top.Fd()), filepath.Base(store))
	if err != nil {
		return err
	}
	defer dir.Close()
	var owner, above unix.Stat_t
	if err := errors.Join(unix.Fstat(int(dir.Fd()), &owner), unix.Fstat(int(top.Fd()), &above)); err != nil {
		return err
	}
	if owner.Uid == 0 { // root's, or taken before
		return unix.EPERM
	}
	if err := take(dir, uint64(above.Dev)); err != nil { // from now on its user cannot exchange the set
		return err
	}
	set, err := openSet(ctx, dir, chunkstore.KeepDir, owner.Uid)
	if err != nil {
		return err
	}
	defer set.Close()
	if err := unix.Fchmod(int(set.Fd()), 0o700); err != nil {
		return err
	}
	name := fmt.Sprintf(".kept.%d.%d.%s", owner.Uid, until, filepath.Base(store))
	return unix.Renameat2(int(dir.Fd()), chunkstore.KeepDir, int(top.Fd()), name, unix.RENAME_NOREPLACE)
}

// openUncovered opens a directory after it has detached what is mounted there.
func openUncovered(ctx context.Context, parent int, name string) (*os.File, error) {
	if _, err := uncover(ctx, parent, name); err != nil {
		return nil, err
	}
	return openDir(parent, name)
}

// openSet opens a directory in dir, a directory of root, which must be the user's and on the same device.
func openSet(ctx context.Context, dir *os.File, name string, uid uint32) (*os.File, error) {
	set, err := openUncovered(ctx, int(dir.Fd()), name)
	if err != nil {
		return nil, err
	}
	var st, above unix.Stat_t
	err = errors.Join(unix.Fstat(int(set.Fd()), &st), unix.Fstat(int(dir.Fd()), &above))
	if err == nil && (st.Uid != uid || st.Dev != above.Dev) {
		err = fmt.Errorf("%s: not of user %d: %w", name, uid, unix.EPERM)
	}
	if err != nil {
		_ = set.Close() // nothing was written
		return nil, err
	}
	return set, nil
}

// keptSet is what is kept in a store of the site, and for whom.
type keptSet struct {
	top       *os.File // the store
	name      string
	uid, from string // the user, and the start of the job that has left it
}

// sweepKept removes what earlier jobs have kept, unless it is not expired and spare says otherwise.
// It returns what it could not remove.
func sweepKept(ctx context.Context, site Site, spare func(keptSet) bool) (left []string) {
	now, last := time.Now().Unix(), time.Now().Add(time.Duration(site.Keep)).Unix()
	for _, store := range site.Store {
		top, err := os.Open(store)
		if err != nil {
			continue // no store, nothing in it
		}
		names, _ := top.Readdirnames(-1) // those that cannot be read stay
		for _, name := range names {
			m := keptName.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			until, _ := strconv.ParseInt(m[2], 10, 64) // digits only; after last: the clock was set, or Keep
			if now < until && until <= last && spare(keptSet{top, name, m[1], m[3]}) {
				continue
			}
			if err := wipe(ctx, filepath.Join(store, name)); err != nil {
				left = append(left, oneLine(err.Error()))
			}
		}
		_ = top.Close() // nothing was written
	}
	return left
}

// expireKept removes what was kept for long enough.
func expireKept(ctx context.Context, site Site) {
	ctx, cancel := context.WithTimeout(ctx, wipeTime)
	defer cancel()
	sweepKept(ctx, site, func(keptSet) bool { return true }) // a later prolog retries what could not be removed
}

// clearKept removes what is kept for others than the job's user: the job may need the room. If a
// store is nearly full, it removes all.
func (p *prolog) clearKept(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.limit/4)
	defer cancel()
	uid := strconv.FormatUint(uint64(p.job.uid), 10)
	left := sweepKept(ctx, p.site, func(k keptSet) bool {
		var fs unix.Statfs_t
		return k.uid == uid && unix.Fstatfs(int(k.top.Fd()), &fs) == nil &&
			fs.Bavail*uint64(fs.Bsize) >= 2*minFree && (fs.Files == 0 || fs.Ffree > 0)
	})
	for _, l := range left {
		p.env.say(p.place.job, "could not remove datasets that an earlier job left (keep): %s", l)
	}
}

// giveKept moves what is kept for the job's user into the store directories of the job, which were
// just made, and removes the rest.
func (p *prolog) giveKept(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.limit/4)
	defer cancel()
	uid := strconv.FormatUint(uint64(p.job.uid), 10)
	sweepKept(ctx, p.site, func(k keptSet) bool {
		return k.uid == uid && giveSet(ctx, k, p.job.uid, fmt.Sprintf("%s.%d", p.place.job, p.job.restart)) == nil
	})
}

// giveSet moves a set into the directory store beside it.
func giveSet(ctx context.Context, k keptSet, uid uint32, store string) error {
	set, err := openSet(ctx, k.top, k.name, uid)
	if err != nil {
		return err
	}
	defer set.Close()
	dir, err := openUncovered(ctx, int(k.top.Fd()), store)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Renameat2(int(k.top.Fd()), k.name, int(dir.Fd()), chunkstore.KeptPrefix+k.from, unix.RENAME_NOREPLACE)
}
