package pitch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/rpc"
)

// KeeperConfig configures a keeper.
type KeeperConfig struct {
	Record  string    // the file that the prolog wrote
	Key     io.Reader // standard input: a key in hex, or nothing
	Program string    // the bivouac binary; this one if empty
	Log     *logrus.Entry
	Syslog  string // the socket of syslog; /dev/log if empty
}

const (
	// termTime bounds the leave of a job after SIGTERM.
	termTime = 10 * time.Second
	// finishTime bounds the teardown after the daemon has left.
	finishTime = wipeTime + killTime + unmountTime
)

// Keeper supervises a job on this node until it is ordered to leave. It runs as root, detached,
// with its log as standard output and error.
func Keeper(ctx context.Context, cfg KeeperConfig) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cfg.Log = cmp.Or(cfg.Log, logrus.NewEntry(logrus.StandardLogger()))
	prepareProcess(cfg.Log)
	rec, err := readRecord(cfg.Record)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	cfg.Log.Logger.SetFormatter(LogFormatter(rec.Site.LogFormat))
	given, err := io.ReadAll(io.LimitReader(cfg.Key, 256))
	if err != nil {
		return fmt.Errorf("keeper: read the job key: %w", err)
	}
	k := newKeeper(rec, strings.TrimSpace(string(given)), cfg)
	return k.run(ctx)
}

// prepareProcess sets the limits that the daemon inherits: umask 0, many descriptors, no core file (it would contain
// the key). It also protects the keeper from the OOM killer and makes it the subreaper of the daemon's children.
func prepareProcess(log *logrus.Entry) {
	syscall.Umask(0)
	errs := []error{
		raiseFiles(),
		syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}),
		os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0),
		adoptOrphans(),
	}
	if err := errors.Join(errs...); err != nil {
		log.WithError(err).Debug("could not set all process limits")
	}
}

// raiseFiles raises the limit of descriptors as far as possible. Setting it also makes the
// runtime pass it to the daemon unchanged.
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

// LogFormatter writes a job's log in one of the formats of job.File.
func LogFormatter(format string) logrus.Formatter {
	if format == job.LogJSON {
		return &logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano}
	}
	return &logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: time.RFC3339Nano}
}

type keeper struct {
	rec     *record
	place   place
	given   string // the key that came with the submission
	sealer  sealer
	program string
	syslog  string
	log     *logrus.Entry

	// Used by the goroutine of run only.
	key     rpc.Key
	meet    *keyServer  // on the first host, during the start
	deaths  []time.Time // times at which daemons died
	trouble []string    // for the final report
	events  int         // number sent to syslog

	exports   sync.WaitGroup // of metrics and events
	endExport func()
	restarts  atomic.Int64 // of the daemon
	conn      *connection  // of the running daemon, if another can take it over, or of the next one; nil: not mounted

	leaving chan struct{} // closed when asked to leave
	gone    chan struct{} // closed when everything is removed

	mu       sync.Mutex
	deadline time.Time // guarded by mu; of the leave; zero before a leave request
	answer   string    // guarded by mu; the answer to the leave request
}

func newKeeper(rec *record, given string, cfg KeeperConfig) *keeper {
	k := &keeper{
		rec: rec, place: rec.place(), given: given, sealer: munge{rec.Site.MungeSocket}, program: cfg.Program, syslog: cfg.Syslog, endExport: func() {},
		log: cfg.Log.WithField("job", rec.Job.Name()), leaving: make(chan struct{}), gone: make(chan struct{}),
	}
	k.program = cmp.Or(k.program, "/proc/self/exe")
	return k
}

// run returns when the job has left; its error names what could not be removed. Its thread is the parent of the
// daemons, which die with it.
func (k *keeper) run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer context.AfterFunc(ctx, func() { k.leave(termTime) })()
	ctl, err := k.listenControl()
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	defer ctl.close()
	err = k.keep()
	k.stopExport()
	if err != nil {
		k.fail(err)
		if k.abandoned() {
			return k.leaveRemains()
		}
	}
	return k.finish()
}

// lookEvery is how often a failed keeper checks that a leave request can still reach it.
const lookEvery = time.Second

// abandoned waits until the job is to leave (false), or until no leave request can arrive any more (true): the run
// directory was removed, or belongs to a later start.
func (k *keeper) abandoned() bool {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-k.leaving:
			return false
		case <-t.C:
			keeper := readProcess(k.place.keeperPid()).pid // 0: not written yet
			if keeper != 0 && keeper != os.Getpid() || !exists(k.place.run()) {
				return true
			}
		}
	}
}

// leaveRemains ends the keeper without a teardown: the directories may belong to a later start, and the next prolog
// finds them by name.
func (k *keeper) leaveRemains() error {
	const why = "the run directory was removed"
	k.mu.Lock()
	k.answer = why
	k.mu.Unlock()
	close(k.gone)
	return fmt.Errorf("keeper: %s", why)
}

// keep starts the job and keeps it running. It returns nil when the job is to leave, or the reason why it cannot
// continue.
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
	if err := mountBackstop(k.place.mount(), k.rec.Job.UID, k.rec.Job.GID); err != nil {
		return err
	}
	defer k.disconnect()
	for {
		err := k.supervise()
		if err == nil || !k.mayRestart(err) {
			return err
		}
	}
}

// untilLeave returns a context that ends at the deadline or when the job is to leave.
func (k *keeper) untilLeave(deadline time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-k.leaving:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(); wg.Wait() }
}

// getKey creates the job key, or fetches it from the first host.
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
		err = errors.New("no job key came with the submission, and munge is off at this site: submit with the spank plugin, or set munge: auto in bivouac.yaml and start munged")
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
	// maxDeaths deaths within deathSpan end the job on this node.
	maxDeaths = 4
	deathSpan = time.Minute
	backoff   = 100 * time.Millisecond
)

// canFinish reports whether results still need to be staged out when the job leaves, and whether there is time for it.
func (k *keeper) canFinish() bool {
	return len(k.rec.Job.StageOut) > 0 && time.Until(k.leaveDeadline()) > reserve
}

// mustFinish reports whether a daemon is started although the job is to leave: the previous one died before it
// finished. In a job of several nodes it becomes ready only while the other daemons run, but these end at the deadline
// at the latest.
func (k *keeper) mustFinish() bool { return k.isLeaving() && len(k.deaths) > 0 && k.canFinish() }

// recentDeaths returns the deaths within deathSpan, and forgets earlier ones.
func (k *keeper) recentDeaths() []time.Time {
	k.deaths = slices.DeleteFunc(k.deaths, func(at time.Time) bool { return time.Since(at) > deathSpan })
	return k.deaths
}

// mayRestart reports whether the daemon may be restarted, after a pause.
func (k *keeper) mayRestart(why error) bool {
	var f fatal
	if errors.As(why, &f) {
		return false
	}
	k.deaths = append(k.recentDeaths(), time.Now())
	if len(k.deaths) >= maxDeaths {
		return false
	}
	k.trouble = append(k.trouble, why.Error())
	k.restarts.Add(1)
	k.log.WithError(why).Warn("the daemon ended: restarting it")
	t := time.NewTimer(backoff << len(k.deaths))
	defer t.Stop()
	select {
	case <-t.C:
	case <-k.leaving: // supervise returns at once
	}
	return true
}

// fail publishes why the job has no bivouac here. Nothing is removed until the job leaves.
func (k *keeper) fail(why error) {
	k.log.WithError(why).Error("bivouac failed on this node; the job's tasks fail with this reason")
	k.trouble = append(k.trouble, why.Error())
	if err := k.place.writeState(State{Failed, why.Error()}); err != nil {
		k.log.WithError(err).Error("could not write the state file; the job waits until its prolog times out")
	}
}

// finish removes everything and sets the answer to the leave request.
func (k *keeper) finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	left := teardown(ctx, k.place)
	answer := "ok"
	var err error
	switch {
	case len(left) > 0:
		answer = "left " + strings.Join(left, "; ")
		err = fmt.Errorf("keeper: could not remove: %s", strings.Join(left, "; "))
		k.log.WithField("left", left).Error("could not remove all of the job; the next prolog on this node tries again")
	case len(k.trouble) > 0:
		answer = "trouble " + strings.Join(k.trouble, "; ")
		k.log.WithField("trouble", k.trouble).Warn("job ended with problems: the log is kept")
	default:
		if e := os.Remove(k.place.log()); e != nil && !errors.Is(e, os.ErrNotExist) {
			k.log.WithError(e).Warn("could not remove the log")
		}
	}
	k.mu.Lock()
	k.answer = oneLine(answer)
	k.mu.Unlock()
	close(k.gone)
	return err
}
