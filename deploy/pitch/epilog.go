package pitch

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Epilog ends the job on this node, removes everything, and returns the exit status: 0 unless something could not be
// removed. It can be repeated.
func Epilog(ctx context.Context, env Env, site Site) int {
	env.setDefaults()
	id, err := env.jobID()
	if err != nil {
		env.say("?", "%v", err)
		return exitOK
	}
	defer expireKept(ctx, site)
	e := &epilog{env: env, place: place{site, id}, leave: site.LeaveTime(false)}
	if absent(e.place) {
		return exitOK
	}
	e.readRecord()
	ctx, cancel := context.WithTimeout(ctx, e.leave+2*finishTime)
	defer cancel()
	e.dismiss(ctx)
	left := e.clear(ctx)
	if len(left) == 0 {
		return exitOK
	}
	env.say(id, "could not remove: %s", strings.Join(left, "; "))
	_ = logEvent(env.Syslog, fmt.Sprintf("job %s: could not remove: %s; the node is drained", id, strings.Join(left, "; "))) // slurmd's log has it, too
	return exitNodeFault
}

type epilog struct {
	env    Env
	place  place
	before []place // places by the configuration at the prolog, which may have changed since
	leave  time.Duration
}

// readRecord reads the prolog's record, if it still exists.
func (e *epilog) readRecord() {
	r, err := readRecord(e.place.recordFile())
	if err != nil {
		return // the configuration and the job id suffice
	}
	e.leave = e.place.site.LeaveTime(len(r.Job.StageOut) > 0)
	r.Site.Run = e.place.site.Run
	e.before = append(e.before, r.place())
}

// dismiss orders the keeper to leave, and kills it if it does not.
func (e *epilog) dismiss(ctx context.Context) {
	keeper := readProcess(e.place.keeperPid())
	if !keeper.alive() {
		return
	}
	answer, err := askLeave(ctx, e.place.sock(), e.leave)
	switch {
	case err != nil:
		e.env.say(e.place.job, "killing the keeper, which does not answer: %v", err)
	case answer != "ok":
		e.env.say(e.place.job, "%s", answer)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, killTime)
		defer cancel()
		if keeper.gone(ctx) == nil {
			return
		}
	}
	if err := keeper.end(ctx, killTime); err != nil {
		e.env.say(e.place.job, "%v", err)
	}
}

// clear removes the remains that the keeper left, and returns what it could not remove.
func (e *epilog) clear(ctx context.Context) []string {
	var left []string
	for _, p := range append(e.before, e.place) {
		if !absent(p) {
			left = append(left, teardown(ctx, p)...)
		}
	}
	return left
}
