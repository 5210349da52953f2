package pitch

import (
	"errors"
	"fmt"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
)

// ready waits for the daemon's word. It returns nil also when the job is to leave.
func (c *child) ready(until time.Time) error {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	for {
		select {
		case n, ok := <-c.notes:
			switch {
			case !ok:
				return c.death("while it started")
			case n.Failed != "":
				return fatal{errors.New(oneLine(n.Failed))}
			case n.Ready:
				return nil
			}
		case <-t.C:
			return fatal{fmt.Errorf("the daemon was not ready in time: see %s", c.k.place.log())}
		case <-c.k.leaving:
			return nil
		}
	}
}

// watch returns when the daemon is dead, as good as dead, or to leave.
func (c *child) watch() error {
	silence := time.Duration(c.k.rec.Site.Watchdog)
	t := time.NewTimer(silence)
	defer t.Stop()
	for {
		select {
		case n, ok := <-c.notes:
			c.heed(n)
			switch {
			case !ok:
				return c.death("")
			case n.Failed != "":
				return errors.New(oneLine(n.Failed))
			case n.Left: // it knows that the job is over
				c.k.leave(termTime)
				return nil
			case n.Alive:
				t.Reset(silence)
			}
		case <-t.C:
			return fmt.Errorf("the daemon did not answer for %v and was killed", silence)
		case <-c.k.leaving:
			c.takeLeave()
			return nil
		}
	}
}

// takeLeave lets the daemon finish until the deadline. One that went on saying
// that it is alive and then falls silent is not waited for; one note may have
// been under way when the order went out.
func (c *child) takeLeave() {
	deadline := c.k.leaveDeadline()
	left := time.Until(deadline)
	if err := c.leash.Send(daemon.Order{Leave: true, Deadline: max(1, int(left/time.Second))}); err != nil {
		c.k.troubled("the daemon ended before it could finish")
		return
	}
	silence, alive := 2*time.Duration(c.k.rec.Site.Watchdog), 0
	quiet, end := time.NewTimer(maxLeave), time.NewTimer(left)
	defer quiet.Stop()
	defer end.Stop()
	for {
		select {
		case n, ok := <-c.notes:
			c.heed(n)
			if n.Left {
				return
			}
			if n.Alive {
				alive++
			}
			if alive > 1 {
				quiet.Reset(silence)
			}
			if !ok {
				c.k.troubled(c.death("before it had finished").Error())
				return
			}
		case <-quiet.C:
			c.k.troubled(fmt.Sprintf("the daemon did not answer for %v while it finished", silence))
			return
		case <-end.C:
			c.k.troubled("the daemon had not finished at the deadline: what was to be staged out may be incomplete")
			return
		}
	}
}

// heed keeps what the user should know.
func (c *child) heed(n daemon.Note) {
	if n.Trouble != "" {
		c.k.troubled(n.Trouble)
	}
}

func (k *keeper) troubled(what string) {
	const most = 16 // a daemon could complain for ever
	if len(k.trouble) < most {
		k.trouble = append(k.trouble, oneLine(what))
		k.log.Warn(oneLine(what))
	}
}

// death says how the daemon ended. If only the leash was cut it is still
// there; it is killed then.
func (c *child) death(when string) error {
	if when != "" {
		when = " " + when
	}
	if !c.waitDied(grace) {
		return fmt.Errorf("the daemon cut its leash%s: see %s", when, c.k.place.log())
	}
	how := "with status 0"
	if c.exit != nil {
		how = "with " + c.exit.Error()
	}
	return fmt.Errorf("the daemon ended%s %s: see %s", when, how, c.k.place.log())
}
