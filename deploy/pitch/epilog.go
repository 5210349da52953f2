package pitch

import (
	"context"
	"strings"
	"time"
)

// Epilog ends the job on this node and returns when nothing of it is left: the
// exit status, 0 unless something could not be removed. A node that has
// nothing of the job is done at once; a second epilog finds it so.
func Epilog(ctx context.Context, env Env, site Site) int {
	env.setDefaults()
	id, err := env.jobID()
	if err != nil {
		env.say("?", "%v", err)
		return exitOK
	}
	e := &epilog{env: env, place: place{site, id}, leave: site.leaveTime(false)}
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
	return exitSick
}

type epilog struct {
	env    Env
	place  place
	before []place // as the prolog saw it, if the site's configuration changed since
	leave  time.Duration
}

// readRecord looks up what the prolog wrote down, if that is still there.
func (e *epilog) readRecord() {
	r, err := readRecord(e.place.recordFile())
	if err != nil {
		return // the site's configuration and the job's number tell enough
	}
	e.leave = e.place.site.leaveTime(len(r.Job.StageOut) > 0)
	r.Site.Run = e.place.site.Run
	e.before = append(e.before, r.place())
}

// dismiss lets the keeper do it, and makes sure that it is gone.
func (e *epilog) dismiss(ctx context.Context) {
	keeper := readProcess(e.place.keeperPid())
	if !keeper.alive() {
		return
	}
	answer, err := askLeave(ctx, e.place.sock(), e.leave)
	switch {
	case err != nil:
		e.env.say(e.place.job, "the keeper does not answer and is killed: %v", err)
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

// clear removes what the keeper did not, and reports what stays.
func (e *epilog) clear(ctx context.Context) []string {
	var left []string
	for _, p := range append(e.before, e.place) {
		if !absent(p) {
			left = append(left, teardown(ctx, p)...)
		}
	}
	return left
}
