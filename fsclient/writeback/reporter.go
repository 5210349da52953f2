package writeback

// Reporter reports the errors of the buffered writes of one descriptor. Each error is reported once, by a later call of
// the descriptor, except where the kernel or another process may not pass it on (BeforeWrite, Take, TakeAll). part is
// nowhere if the last write was not the first part of a larger one, and anywhere if that is unknown.
type Reporter struct {
	b     *Buffer
	err   error  // under b.mu: to be reported
	part  int64  // under b.mu: where the last write's rest may begin, or nowhere, or anywhere
	rest  bool   // under b.mu: the last write began at part
	shown error  // under b.mu: the error that Take returned since the last TakeAll
	known uint64 // under b.mu: how many losses were reported, or are in err
}

// Reporter returns a reporter for one more descriptor. It reports losses from now on.
func (b *Buffer) Reporter() *Reporter {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &Reporter{b: b, part: nowhere, known: b.losses}
}

// BeforeWrite takes the error to report before a write of n bytes at off. If that write may be the rest of one whose
// first part was written, the kernel returns the length of the first part and drops the error: the error is then
// reported again. A first part can be short: the kernel cuts a writev(2) after about 128 segments.
func (r *Reporter) BeforeWrite(off int64, n int) error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	err, rest := r.err, r.part == off || r.part == anywhere
	if err != nil && rest {
		r.part = nowhere
		return err
	}
	r.err, r.part, r.rest = nil, nowhere, rest
	if err == nil {
		r.part = behind(off, n)
	}
	return err
}

// Take takes the error to report by a close. TakeAll reports it again: the close may come from a child process that
// closes its copy of the descriptor when it begins another program and drops the error, while the parent continues to
// write.
func (r *Reporter) Take() error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	err := r.err
	if r.err = nil; err != nil {
		r.shown = err
	}
	return err
}

// TakeAll takes the error to report when all writes must be durable, including losses of other descriptors. With write
// it is reported by a write, and again if that write may be the rest of a larger one; see BeforeWrite.
func (r *Reporter) TakeAll(write bool) error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	err := r.err
	if err == nil {
		err = r.shown
	}
	if err == nil && r.known < r.b.losses {
		err = r.b.lost
	}
	r.err, r.shown, r.known = nil, nil, r.b.losses
	if err != nil && write && r.rest {
		r.err, r.part = err, nowhere
	}
	return err
}

// Clean reports whether all buffered bytes have arrived, and no loss remains to be reported.
func (r *Reporter) Clean() bool {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	return r.b.arrived() && r.err == nil && r.known == r.b.losses
}

// Adopted records that an earlier process had the descriptor: its next write may be the rest of one whose first part
// that process has taken. lost is the error to report, if there is one.
func (r *Reporter) Adopted(lost error) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.err, r.part = lost, anywhere
}

// Repeat makes the next call of the descriptor report err again, which a write returns now: the kernel drops it if that
// write is the rest of a larger one.
func (r *Reporter) Repeat(err error) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.err, r.part = err, nowhere
}

// Lost records a loss that Sync reports to every descriptor.
func (b *Buffer) Lost(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lose(err, nil)
}

// lose records that acknowledged bytes of the descriptors by are lost; b.mu is held. A Reporter reports the first of
// several errors.
func (b *Buffer) lose(err error, by []*Reporter) {
	b.losses++
	b.lost = err
	for _, r := range by {
		if r.known++; r.err == nil {
			r.err = err
		}
	}
}
