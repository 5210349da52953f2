package fill

import (
	"context"
	"math"
	"time"
)

const (
	demandGap  = 100 * time.Millisecond // without a waiting reader, until the order of the fill goes on, if readers mostly wait
	demandRest = 1                      // pause of the one worker that goes on meanwhile, in times that its last piece took,
	mostRest   = time.Second            // and at the most
	othersRest = 5 * time.Second        // of the other workers: the first one may be waiting for a file that hangs
	mostlyWait = 0.5                    // load from which on readers mostly wait
	loadMemory = 500 * time.Millisecond // time constant of a load
)

// load is the share of the time in which readers wait, a moving average.
type load struct {
	share      float64
	rose, fell time.Time // the last times at which the first one came and the last one was served
}

func (l *load) rises(now time.Time) { l.rose = now }

func (l *load) falls(now time.Time) {
	if all := now.Sub(l.fell); all > 0 {
		w := 1 - math.Exp(-all.Seconds()/loadMemory.Seconds())
		l.share += w * (now.Sub(l.rose).Seconds()/all.Seconds() - l.share)
	}
	l.fell = now
}

// wait notes a waiting reader until served is called.
func (t *flights) wait() (served func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waits++; t.waits == 1 {
		t.load.rises(time.Now())
		select {
		case <-t.idle:
			t.idle = make(chan struct{})
		default: // the gap is not over
		}
	}
	return t.served
}

func (t *flights) served() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waits--; t.waits > 0 {
		return
	}
	now := time.Now()
	if t.load.falls(now); t.load.share < mostlyWait {
		close(t.idle)
		return
	}
	time.AfterFunc(demandGap, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.waits > 0 || !t.load.fell.Equal(now) {
			return
		}
		select {
		case <-t.idle: // closed by the next one, at the same time of a coarse clock
		default:
			close(t.idle)
		}
	})
}

// yieldToReaders returns when no reader waits, or after a rest. If readers follow the order of the fill, so
// that few pieces were demanded before their turn, it returns at once: what they wait for next comes next, and a node that
// held back would fall behind the others, which take its share of the source.
func (t *flights) yieldToReaders(ctx context.Context, rest time.Duration) {
	t.mu.Lock()
	idle, follow := t.idle, t.early <= t.most
	t.mu.Unlock()
	if follow {
		return
	}
	select {
	case <-idle:
	case <-time.After(rest):
	case <-ctx.Done():
	}
}

// restAfter is how long to pause after a read ahead that took so long.
func restAfter(took time.Duration) time.Duration { return min(demandRest*took, mostRest) }
