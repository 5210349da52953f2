package prefetch

import (
	"cmp"
	"slices"
	"time"
)

const (
	pieceBytes   = 1 << 20     // of a stream, fetched by one request
	firstAhead   = 2 << 20     // bytes ahead of a reader at first; doubled whenever the reader is late
	mostDistance = 32 << 20    // bytes
	slack        = 2 << 20     // bytes within which the kernel's read-ahead reads out of order
	idleAfter    = time.Minute // a stream without reads for this long is given up
	mostStreams  = 256
)

// stream is a large file that is read from front to back, or a large range of one, by number.
type stream struct {
	number     int
	begin, end int64
	front      int64   // all bytes before it were read
	next       int64   // the next piece to request
	ahead      int64   // bytes to fetch ahead of front
	held       []int64 // pieces that were requested and not passed
	begun      bool    // a read was seen
	successor  int     // the number that is read next, plus one; 0: unknown
	at         time.Time
}

// streams decides which pieces of large files to fetch. It is pure, and not for concurrent use.
type streams struct {
	budget int64 // bytes held
	all    []*stream
	held   int64            // bytes, including those in flight
	bytes  int64            // fetched so far
	flying map[pieceID]bool // in flight; true: no longer wanted
	gone   []pieceID
}

// pieceID names a piece of a stream.
type pieceID struct {
	number int
	off    int64
}

func (s *streams) find(number int) *stream {
	for _, x := range s.all {
		if x.number == number {
			return x
		}
	}
	return nil
}

// expect makes a stream of a file that will be read soon, which makes its first piece be fetched.
func (s *streams) expect(number int, begin, end int64, now time.Time) *stream {
	if x := s.find(number); x != nil {
		return x
	}
	if len(s.all) == mostStreams {
		s.end(s.all[0])
	}
	x := &stream{number: number, begin: begin, end: end, front: begin, next: begin, ahead: pieceBytes, at: now}
	s.all = append(s.all, x)
	return x
}

// read records a read, and returns the stream. first reports whether it is the first read of the stream.
func (s *streams) read(number int, begin, end, off, n int64, now time.Time) (x *stream, first bool) {
	x = s.expect(number, begin, end, now)
	if off == begin && x.front > begin+slack { // read again
		s.end(x)
		x = s.expect(number, begin, end, now)
	}
	first, x.at = !x.begun, now
	to := min(off+n, end)
	switch {
	case first:
		x.begun, x.ahead = true, firstAhead
		if x.front = to; off > begin { // in the middle of the file
			x.next = max(x.next, x.ceil(to))
		}
	case off > x.front+slack || off < x.front-slack: // elsewhere: nothing is fetched until reads continue from there
		x.front, x.next, x.ahead = to, x.ceil(to), 0
	default:
		x.ahead = cmp.Or(x.ahead, firstAhead)
		x.front = max(x.front, to)
	}
	if x.front > x.next {
		x.next = x.ceil(x.front)
		x.late()
	}
	s.pass(x)
	return x, first
}

// ceil returns off rounded up to the end of a piece, or the end of the stream.
func (x *stream) ceil(off int64) int64 {
	return min(x.begin+(off-x.begin+pieceBytes-1)/pieceBytes*pieceBytes, x.end)
}

// late records that the reader arrived before its bytes.
func (x *stream) late() {
	if x.ahead > 0 {
		x.ahead = min(2*x.ahead, mostDistance)
	}
}

// pass gives up the pieces that the reader has passed, or left behind.
func (s *streams) pass(x *stream) {
	s.drop(x, func(off int64) bool { return off+pieceBytes <= x.front-slack || off >= x.front+mostDistance+slack })
}

func (s *streams) drop(x *stream, gone func(off int64) bool) {
	x.held = slices.DeleteFunc(x.held, func(off int64) bool {
		if !gone(off) {
			return false
		}
		p := pieceID{x.number, off}
		s.gone = append(s.gone, p)
		if _, under := s.flying[p]; under {
			s.flying[p] = true // it takes memory until it has arrived
			return true
		}
		s.held -= pieceBytes
		return true
	})
}

// end gives up a stream.
func (s *streams) end(x *stream) {
	s.drop(x, func(int64) bool { return true })
	s.all = slices.DeleteFunc(s.all, func(o *stream) bool { return o == x })
}

// fetchNext returns the next piece to fetch, for the reader with the fewest bytes ahead; files not read yet come last.
func (s *streams) fetchNext() (p pieceID, n int64, ok bool) {
	if s.held+pieceBytes > s.budget && !s.relieve() {
		return p, 0, false
	}
	active := slices.DeleteFunc(slices.Clone(s.all), (*stream).finished)
	share := max(s.budget/int64(max(len(active), 1)), pieceBytes)
	var best *stream
	for _, x := range active {
		for slices.Contains(x.held, x.next) {
			x.next = min(x.next+pieceBytes, x.end)
		}
		if x.next >= x.end || x.next >= x.front+x.ahead || int64(len(x.held)+1)*pieceBytes > share {
			continue
		}
		if s.flying[pieceID{x.number, x.next}] {
			continue // it is requested again when it has arrived
		}
		if best == nil || x.begun && !best.begun || x.begun == best.begun && x.next-x.front < best.next-best.front {
			best = x
		}
	}
	if best == nil {
		return p, 0, false
	}
	p, n = pieceID{best.number, best.next}, min(best.end-best.next, pieceBytes)
	best.next += n
	best.held = append(best.held, p.off)
	s.held += pieceBytes
	if s.flying == nil {
		s.flying = make(map[pieceID]bool)
	}
	s.flying[p] = false
	return p, n, true
}

// finished reports whether a stream was read to its end. Its last pieces stay while there is room: reads may be late.
func (x *stream) finished() bool { return x.front == x.end }

// relieve makes room for a piece by dropping those of a finished stream; it returns false if that is not enough.
func (s *streams) relieve() bool {
	for _, x := range s.all {
		if x.finished() && len(x.held) > 0 {
			s.drop(x, func(int64) bool { return true })
			return s.held+pieceBytes <= s.budget
		}
	}
	return false
}

// fetched processes the result of a piece. It reports whether the piece is still wanted.
func (s *streams) fetched(p pieceID, n int64, res Result) bool {
	if res != Failed && res != Later {
		s.bytes += n
	}
	unwanted := s.flying[p]
	delete(s.flying, p)
	if unwanted {
		s.held -= pieceBytes
		return false // the reader has passed it
	}
	x := s.find(p.number)
	switch res {
	case Failed, Later:
		x.ahead = 0 // until the next read
		x.next = min(x.next, max(p.off, x.ceil(x.front)))
		s.drop(x, func(off int64) bool { return off == p.off })
		s.gone = s.gone[:len(s.gone)-1] // it was never kept
		return false
	case Met:
		x.late()
	}
	return true
}

// skip records that a file needs no fetching, and that the piece was not requested.
func (s *streams) skip(p pieceID) {
	delete(s.flying, p)
	if x := s.find(p.number); x != nil {
		x.next = x.end
		s.drop(x, func(int64) bool { return true })
	}
}

// expire gives up streams that are no longer read.
func (s *streams) expire(now time.Time) {
	for _, x := range slices.Clone(s.all) {
		if now.Sub(x.at) > idleAfter {
			s.end(x)
		}
	}
}

// ending reports whether the reader of a stream is near its end.
func (x *stream) ending() bool {
	return x.begun && x.ahead > 0 && x.front+max(x.ahead, firstAhead) >= x.end
}

// takeGone returns the pieces that have become unwanted since the last call.
func (s *streams) takeGone() []pieceID {
	g := s.gone
	s.gone = nil
	return g
}
