package pitch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath/rpc"
)

// KeeperConfig is what the command gives a keeper.
type KeeperConfig struct {
	Record  string    // the file that the prolog wrote
	Key     io.Reader // standard input: a key in hex, or nothing
	Program string    // the bivouac binary; this one
	Log     *logrus.Entry
}

const (
	// termTime is how long a job may take to leave after a SIGTERM.
	termTime = 10 * time.Second
	// finishTime is for the teardown after the daemon has left.
	finishTime = wipeTime + killTime + unmountTime
)

// Keeper is the process that holds a job on this node until it is told to
// leave. It runs as root, detached, with its log as standard output and error.
func Keeper(ctx context.Context, cfg KeeperConfig) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if cfg.Log == nil {
		cfg.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	prepareProcess(cfg.Log)
	rec, err := readRecord(cfg.Record)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	given, err := io.ReadAll(io.LimitReader(cfg.Key, 256))
	if err != nil {
		return fmt.Errorf("keeper: the job key: %w", err)
	}
	k := newKeeper(rec, strings.TrimSpace(string(given)), cfg)
	return k.run(ctx)
}

// prepareProcess sets what a daemon inherits: umask 0, many descriptors, no
// core file (the key would be in it); asks the kernel to spare the keeper; and makes it
// the parent of orphans.
func prepareProcess(log *logrus.Entry) {
	syscall.Umask(0)
	errs := []error{
		raiseFiles(),
		syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}),
		os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0),
		adoptOrphans(),
	}
	if err := errors.Join(errs...); err != nil {
		log.WithError(err).Debug("the process could not be set up in full")
	}
}

// raiseFiles allows as many descriptors as can be had. Setting the limit also
// makes the runtime hand it on to the daemon as it is.
func raiseFiles() error {
	const want = 1 << 20
	lim := syscall.Rlimit{Cur: want, Max: want}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim) == nil {
		return nil
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return err
	}
	lim.Cur = lim.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim)
}

type keeper struct {
	rec     *record
	place   place
	given   string // the key that came with the submission
	sealer  sealer
	program string
	log     *logrus.Entry

	// Of the goroutine of run.
	key     rpc.Key
	meet    *keyServer  // on the first host, until the start is over
	deaths  []time.Time // of daemons, the latest last
	trouble []string    // what the user should know

	leaving chan struct{} // closed when asked to leave
	gone    chan struct{} // closed when everything is removed

	mu       sync.Mutex
	deadline time.Time // guarded by mu; of the leave, zero before
	farewell string    // guarded by mu; the answer to who asked
}

func newKeeper(rec *record, given string, cfg KeeperConfig) *keeper {
	k := &keeper{
		rec: rec, place: rec.place(), given: given, sealer: munge{rec.Site.MungeSocket}, program: cfg.Program,
		log: cfg.Log.WithField("job", rec.Job.Name()), leaving: make(chan struct{}), gone: make(chan struct{}),
	}
	if k.program == "" {
		k.program = "/proc/self/exe"
	}
	return k
}

// run returns when the job has left and nothing of it is here any more, or
// with what is. Its thread is the parent of the daemons, which die with it.
func (k *keeper) run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer context.AfterFunc(ctx, func() { k.leave(termTime) })()
	door, err := k.openDoor()
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	defer door.close()
	if err := k.keep(); err != nil {
		k.fail(err)
		if k.forsaken() {
			return k.goAway()
		}
	}
	return k.finish()
}

// lookEvery is how often a keeper that only waits looks whether it can be told to leave.
const lookEvery = time.Second

// forsaken waits until the job is to leave, or nobody can say so any more, which it
// reports: the run directory is gone, or that of a later start is in its place.
func (k *keeper) forsaken() bool {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-k.leaving:
			return false
		case <-t.C:
			keeper := readProcess(k.place.keeperPid()).pid // 0: it is not written down yet
			if keeper != 0 && keeper != os.Getpid() || !exists(k.place.run()) {
				return true
			}
		}
	}
}

// goAway leaves what there is to whoever comes later, who finds it by its name: it may be
// that of a later start.
func (k *keeper) goAway() error {
	const why = "the run directory is gone"
	k.mu.Lock()
	k.farewell = why
	k.mu.Unlock()
	close(k.gone)
	return fmt.Errorf("keeper: %s", why)
}

// keep gets the job going and keeps it so. It returns nil when the job is to
// leave, or why it cannot go on.
func (k *keeper) keep() error {
	if k.rec.Failed != "" {
		return errors.New(k.rec.Failed)
	}
	ctx, cancel := k.untilLeave(k.rec.until())
	defer cancel()
	err := k.getKey(ctx)
	defer k.closeMeet()
	if k.isLeaving() {
		return nil
	}
	if err != nil {
		return err
	}
	for {
		err := k.life()
		if err == nil || !k.mayRestart(err) {
			return err
		}
	}
}

// untilLeave is a context that ends at deadline or when asked to leave.
func (k *keeper) untilLeave(deadline time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		select {
		case <-k.leaving:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); wg.Wait() }
}

// getKey makes the job key, or gets it from where it is.
func (k *keeper) getKey(ctx context.Context) (err error) {
	j, site := &k.rec.Job, k.rec.Site
	m := meeting{
		job: j.ID, restart: j.Restart, addrs: meetingAddrs(site, j.ID, j.Restart, j.Hosts[0]),
		sealer: k.sealer, log: k.log,
	}
	switch {
	case k.given != "" && site.Munge != MungeRequire:
		k.key, err = parseKey(k.given)
	case len(j.Hosts) == 1:
		k.key, err = newKey()
	case site.Munge == MungeOff:
		err = errors.New("no job key came with the submission, and the site's configuration says munge: off")
	case j.Self == 0:
		if k.key, err = newKey(); err == nil {
			k.meet, err = serveKey(ctx, m, k.key)
		}
	default:
		k.key, err = fetchKey(ctx, m)
	}
	return err
}

func (k *keeper) closeMeet() {
	if k.meet != nil {
		k.meet.close()
		k.meet = nil
	}
}

const (
	// maxDeaths within deathSpan end a job: a daemon that dies so often will
	// die again.
	maxDeaths = 4
	deathSpan = time.Minute
	backoff   = 100 * time.Millisecond
)

// mayRestart waits a little before another daemon is tried.
func (k *keeper) mayRestart(why error) bool {
	var f fatal
	if errors.As(why, &f) {
		return false
	}
	now := time.Now()
	for len(k.deaths) > 0 && now.Sub(k.deaths[0]) > deathSpan {
		k.deaths = k.deaths[1:]
	}
	k.deaths = append(k.deaths, now)
	if len(k.deaths) >= maxDeaths {
		return false
	}
	k.trouble = append(k.trouble, why.Error())
	k.log.WithError(why).Warn("the daemon is started anew")
	t := time.NewTimer(backoff << len(k.deaths))
	defer t.Stop()
	select {
	case <-t.C:
	case <-k.leaving: // life ends at once
	}
	return true
}

// fail writes down why there is no bivouac. What there is of it stays until
// the job leaves.
func (k *keeper) fail(why error) {
	k.log.WithError(why).Error("the job has no bivouac on this node")
	k.trouble = append(k.trouble, why.Error())
	if err := k.place.writeState(State{Failed, why.Error()}); err != nil {
		k.log.WithError(err).Error("the state cannot be written")
	}
}

// finish takes everything away and answers who asked.
func (k *keeper) finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	left := teardown(ctx, k.place)
	answer := "ok"
	var err error
	switch {
	case len(left) > 0:
		answer = "left " + strings.Join(left, "; ")
		err = fmt.Errorf("keeper: could not be removed: %s", strings.Join(left, "; "))
		k.log.WithField("left", left).Error("not everything could be removed")
	case len(k.trouble) > 0:
		answer = "trouble " + strings.Join(k.trouble, "; ")
		k.log.WithField("trouble", k.trouble).Warn("left with trouble")
	default:
		if e := os.Remove(k.place.log()); e != nil && !errors.Is(e, os.ErrNotExist) {
			k.log.WithError(e).Warn("the log stays")
		}
	}
	k.mu.Lock()
	k.farewell = oneLine(answer)
	k.mu.Unlock()
	close(k.gone)
	return err
}
