package rpc

import "sync"

// workers runs handlers on a bounded number of goroutines, which start on demand and stay until the
// server closes: a warm goroutine is cheaper than a new one with its stack to grow.
type workers struct {
	s    *Server
	work chan *task // unbuffered: a sent task has a goroutine
	max  int

	mu sync.Mutex
	n  int // guarded by mu: goroutines
}

func newWorkers(s *Server, most int) *workers {
	return &workers{s: s, work: make(chan *task), max: most}
}

// run hands t to a worker, waiting while all are busy. It returns false if the connection or the server ended first.
func (p *workers) run(t *task) bool {
	select {
	case p.work <- t:
		return true
	default:
	}
	if p.grow(t) {
		return true
	}
	select {
	case p.work <- t:
		return true
	case <-t.c.ctx.Done():
		return false
	}
}

// grow starts one more goroutine with t as its first task. The connection of t is counted in the
// server's WaitGroup, so Add cannot race with Wait.
func (p *workers) grow(t *task) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n >= p.max {
		return false
	}
	p.n++
	p.s.wg.Add(1)
	go p.loop(t)
	return true
}

func (p *workers) loop(t *task) {
	defer p.s.wg.Done()
	for {
		t.run()
		select {
		case t = <-p.work:
		case <-p.s.ctx.Done():
			return
		}
	}
}
