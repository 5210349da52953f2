package fill

import (
	"context"
	"math"
	"time"
)

const (
	demandGap  = 100 * time.Millisecond // idle time before the fill continues, if readers mostly wait
	demandRest = 1                      // pause of the one worker that continues meanwhile, relative to its last piece
	mostRest   = time.Second            // upper bound of that pause
	othersRest = 5 * time.Second        // pause of the other workers: the first may hang on a file
	mostlyWait = 0.5                    // load above which readers mostly wait
	loadMemory = 500 * time.Millisecond // time constant of the moving average
)

// load is the share of time in which readers wait, as a moving average.
type load struct {
	share      float64
	rose, fell time.Time // when the first reader last arrived, and when the last one was last served
}

func (l *load) rises(now time.Time) { l.rose = now }

func (l *load) falls(now time.Time) {
	if all := now.Sub(l.fell); all > 0 {
		w := 1 - math.Exp(-all.Seconds()/loadMemory.Seconds())
		l.share += w * (now.Sub(l.rose).Seconds()/all.Seconds() - l.share)
	}
	l.fell = now
}

// wait registers a waiting reader until served is called.
func (t *flights) wait() (served func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waits++; t.waits == 1 {
		t.load.rises(time.Now())
		select {
		case <-t.idle:
			t.idle = make(chan struct{})
		default: // demandGap has not elapsed
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
		case <-t.idle: // already closed: on a coarse clock a later reader was served at the same time
		default:
			close(t.idle)
		}
	})
}

// yieldToReaders returns when no reader waits, or after rest. It returns at once if readers follow the fill order, that
// is, if few pieces were demanded before their turn: then the next pieces in the order are the next reads, and a node
// that paused would fall behind the others, which would take its share of the source.
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

// restAfter returns how long to pause after a read-ahead of the given duration.
func restAfter(took time.Duration) time.Duration { return min(demandRest*took, mostRest) }
