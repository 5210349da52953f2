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
// The daemon makes this directory as chunkstore.KeepDir of its store; root renames it when the job ends, and again into
// the store of the next job of the same user. The prolog of any other user's job removes it, and so does each prolog
// and epilog after its expiry. The names belong to root, the content to the user: root renames it and wipes it, and
// opens nothing in it. Root checks the directory by its descriptor at a place where only root can replace it.
var keptName = regexp.MustCompile(`^\.kept\.([0-9]{1,10})\.([0-9]{1,18})\.([1-9][0-9]{0,9}\.[0-9]{1,10})$`)

// keepSets renames the sets that the daemons of a job have left in its stores, for the next job. A set that is not
// renamed is removed with the store.
func keepSets(ctx context.Context, p place) {
	if p.site.Keep <= 0 {
		return
	}
	until := time.Now().Add(time.Duration(p.site.Keep)).Unix()
	for _, store := range p.allStores() {
		_ = keepSet(ctx, store, until) // on failure the next job stages in as usual
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
	if owner.Uid == 0 { // belongs to root, or was taken before
		return unix.EPERM
	}
	if err := take(dir, uint64(above.Dev)); err != nil { // from now on the user cannot exchange the set
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

// openUncovered detaches all mounts over a directory and opens it.
func openUncovered(ctx context.Context, parent int, name string) (*os.File, error) {
	if _, err := uncover(ctx, parent, name); err != nil {
		return nil, err
	}
	return openDir(parent, name)
}

// openSet opens the directory name in dir, which belongs to root. It must belong to the user and be on the same device.
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

// keptSet is a set of datasets kept in a store of the site.
type keptSet struct {
	top       *os.File // the store
	name      string
	uid, from string // the user, and the job and start that left it
}

// sweepKept removes the sets that earlier jobs have kept, except those that have not expired and for which spare
// returns true. It returns what it could not remove.
func sweepKept(ctx context.Context, site Site, spare func(keptSet) bool) (left []string) {
	now, last := time.Now().Unix(), time.Now().Add(time.Duration(site.Keep)).Unix()
	for _, store := range site.Store {
		top, err := os.Open(store)
		if err != nil {
			continue // no store, so nothing to remove
		}
		names, _ := top.Readdirnames(-1) // names that cannot be read stay
		for _, name := range names {
			m := keptName.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			until, _ := strconv.ParseInt(m[2], 10, 64) // digits only; later than last if the clock or Keep was changed
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

// expireKept removes the sets that have expired.
func expireKept(ctx context.Context, site Site) {
	ctx, cancel := context.WithTimeout(ctx, wipeTime)
	defer cancel()
	sweepKept(ctx, site, func(keptSet) bool { return true }) // a later prolog retries what could not be removed
}

// clearKept removes the sets of users other than the job's: the job may need the room. If a store is nearly full, it
// removes all sets.
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

// giveKept moves the sets of the job's user into the store directories of the job, which were just made, and removes
// the rest.
func (p *prolog) giveKept(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.limit/4)
	defer cancel()
	uid := strconv.FormatUint(uint64(p.job.uid), 10)
	sweepKept(ctx, p.site, func(k keptSet) bool {
		return k.uid == uid && giveSet(ctx, k, p.job.uid, fmt.Sprintf("%s.%d", p.place.job, p.job.restart)) == nil
	})
}

// giveSet moves a set into the store directory of the job, which is beside it.
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
