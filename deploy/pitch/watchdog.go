package pitch

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
)

// ready waits until the daemon reports that it is ready, or the job is to leave.
func (c *child) ready(until time.Time) error {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	leaving := c.k.leaving
	for {
		if c.k.mustFinish() {
			leaving = nil
		}
		select {
		case n, ok := <-c.notes:
			switch {
			case !ok:
				return c.death("while it started")
			case n.Failed != "" && c.conn.kept: // a daemon with a new mount may start
				c.conn.kept = false
				return errors.New(oneLine(n.Failed))
			case n.Failed != "":
				return fatal{errors.New(oneLine(n.Failed))}
			case n.Ready:
				c.serves(n.Kept)
				return nil
			}
		case <-t.C:
			return fatal{fmt.Errorf("the daemon was not ready in time; see %s", c.k.place.log())}
		case <-leaving:
			if !c.k.mustFinish() {
				return nil
			}
		}
	}
}

// watch returns when the daemon has died, stops answering, or is to leave.
func (c *child) watch() error {
	silence := c.k.rec.Job.Watchdog()
	t := time.NewTimer(silence)
	defer t.Stop()
	for {
		select {
		case n, ok := <-c.notes:
			c.noteTrouble(n)
			switch {
			case !ok:
				return c.death("")
			case n.Failed != "":
				return errors.New(oneLine(n.Failed))
			case n.Left: // the daemon knows that the job has ended
				c.k.leave(termTime)
				return nil
			case n.Alive:
				t.Reset(silence)
			}
		case <-t.C:
			return fmt.Errorf("the daemon did not answer for %v and was killed", silence)
		case <-c.k.leaving:
			return c.awaitLeave()
		}
	}
}

// awaitLeave lets the daemon finish until the deadline. It gives up earlier if the heartbeats stop; the first heartbeat
// after the order does not count, since it may have been in transit. The error is the death of a daemon whose work
// another one can finish.
func (c *child) awaitLeave() error {
	deadline := c.k.leaveDeadline()
	left := time.Until(deadline)
	if err := c.heartbeat.Send(daemon.Order{Leave: true, Deadline: max(1, int(left/time.Second))}); err != nil {
		return c.diedLeaving(errors.New("the daemon ended before it could finish"))
	}
	silence, alive := 2*c.k.rec.Job.Watchdog(), 0
	quiet, end := time.NewTimer(maxLeave), time.NewTimer(left)
	defer quiet.Stop()
	defer end.Stop()
	for {
		select {
		case n, ok := <-c.notes:
			c.noteTrouble(n)
			if n.Left {
				return nil
			}
			if n.Alive {
				alive++
			}
			if alive > 1 {
				quiet.Reset(silence)
			}
			if !ok {
				return c.diedLeaving(c.death("before it had finished"))
			}
		case <-quiet.C:
			c.k.reportTrouble(fmt.Sprintf("the daemon did not answer for %v while it finished", silence))
			return nil
		case <-end.C:
			c.k.reportTrouble("the daemon had not finished at the deadline: stage-out may be incomplete; compare the targets, or ask the site for a longer epilog_timeout")
			return nil
		}
	}
}

// diedLeaving returns why the daemon died, or only reports it if no other daemon can finish its work.
func (c *child) diedLeaving(why error) error {
	if c.k.canFinish() {
		return why
	}
	c.k.reportTrouble(why.Error())
	return nil
}

// noteTrouble keeps the trouble in a note for the final report, and reports a lost node to syslog.
func (c *child) noteTrouble(n daemon.Note) {
	if n.Trouble != "" {
		c.k.reportTrouble(n.Trouble)
	}
	if k := c.k; slices.Contains(k.rec.Job.Hosts, n.Lost) && k.events < len(k.rec.Job.Hosts) {
		k.events++ // a broken daemon could send any number
		text := fmt.Sprintf("job %s of uid %d: node %s is lost: its daemon, its machine or its network is down", k.place.job, k.rec.Job.UID, n.Lost)
		k.exports.Go(func() { // so that the wait for heartbeats continues
			if err := logEvent(k.syslog, text); err != nil {
				k.log.WithError(err).Debug("could not write to syslog")
			}
		})
	}
}

func (k *keeper) reportTrouble(what string) {
	const most = 16 // a broken daemon could send any number
	if len(k.trouble) < most {
		k.trouble = append(k.trouble, oneLine(what))
		k.log.Warn(oneLine(what))
	}
}

// death describes the end of the daemon. A daemon that only closed the heartbeat connection still runs, and will be
// killed.
func (c *child) death(when string) error {
	if when != "" {
		when = " " + when
	}
	if !c.waitDied(grace) {
		return fmt.Errorf("the daemon closed its heartbeat connection%s; see %s", when, c.k.place.log())
	}
	how := "with status 0"
	if c.exit != nil {
		how = "with " + c.exit.Error()
	}
	return fmt.Errorf("the daemon ended%s %s; see %s", when, how, c.k.place.log())
}
