package rpc

// workers bounds the goroutines that run handlers: a token for each.
type workers chan struct{}

// run gives t to a goroutine; it waits while there are enough. False if the connection or the server ended first. The
// connection of t is counted in the server's WaitGroup, so that this cannot race with Wait.
func (p workers) run(t *task) bool {
	select {
	case p <- struct{}{}:
	case <-t.c.ctx.Done():
		return false
	}
	t.c.s.wg.Go(func() {
		defer func() { <-p }()
		t.run()
	})
	return true
}
