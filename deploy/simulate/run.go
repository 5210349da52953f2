package simulate

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// computed is how many epochs are simulated; later ones are like the last of these.
const computed = 3

// Requests for a file that is read by itself: lookup, open, read. Runs are read in pieces of runBytes. Staging has
// stagers requests of each node in flight.
const (
	fileRequests = 3
	runBytes     = 1 << 20
	stagers      = 16
)

// queue is a FIFO resource. Times are in seconds since the job began.
type queue struct {
	free float64 // when all requests so far will be done
	idle float64 // idle seconds before free
}

// take returns when a request that arrives at t and takes cost is done.
func (q *queue) take(t, cost float64) float64 {
	if t > q.free {
		q.idle += t - q.free
		q.free = t
	}
	q.free += cost
	return q.free
}

// background returns when background work is done, which uses idle time first.
func (q *queue) background(cost float64) float64 {
	used := min(cost, q.idle)
	q.idle -= used
	q.free += cost - used
	return q.free
}

// run is the simulation of one policy.
type run struct {
	job    *Job
	policy Policy
	at     placement
	world  int // ranks
	ahead  int // batches

	source  queue
	disk    []queue // of each node
	in, out []queue // each node's link

	staged []bool  // by file: it is staged
	order  []int32 // of staging without a plan
	sealed float64 // when all files were staged

	copied  float64 // share of the files that a node does not own of which it has copies
	copying float64 // the share that it will have

	sent []fetch // by node: its part of the batch being loaded

	epoch *Epoch
}

// Run simulates the job under a policy.
func Run(j *Job, p Policy) (Result, error) {
	if err := j.Check(); err != nil {
		return Result{}, err
	}
	if _, err := ParsePolicy(string(p)); err != nil {
		return Result{}, err
	}
	r := &run{
		job: j, policy: p, at: j.place(), world: j.Nodes * j.Ranks,
		disk: make([]queue, j.Nodes), in: make([]queue, j.Nodes), out: make([]queue, j.Nodes), sent: make([]fetch, j.Nodes),
	}
	if mean := max(1, r.at.bytes/float64(len(j.Sizes))); p.planned() && j.Ahead > 0 {
		r.ahead = max(1, int(min(float64(j.Ahead)/(mean*float64(j.Batch*j.Ranks)), float64(r.steps()))))
	}
	r.copying = r.mayCopy()
	return r.train(), nil
}

// mayCopy returns the share of the files that a node does not own of which it may have copies.
func (r *run) mayCopy() float64 {
	j := r.job
	if r.policy != Replicas || j.Nodes == 1 || r.at.fits < 1 {
		return 0
	}
	share := 1.0
	if j.Copies > 0 {
		share = float64(j.Copies) / float64(j.Nodes-1)
	}
	if j.Room > 0 && r.at.bytes > 0 {
		own := r.at.bytes / float64(j.Nodes)
		share = min(share, max(0, float64(j.Room)-own)/(r.at.bytes-own))
	}
	return share
}

// loader is the DataLoader of a rank.
type loader struct {
	done  []float64 // when the last few batches were loaded
	taken []float64 // when training took them
	end   float64   // of the last step
}

func (r *run) train() Result {
	j := r.job
	res := Result{Policy: r.policy, About: r.policy.About(), Nodes: j.Nodes, Fits: r.at.fits, Epochs: make([]Epoch, min(j.Epochs, computed))}
	r.epoch = &res.Epochs[0]
	now := 0.0
	switch r.policy {
	case Direct:
		res.Fits = 0
	case StageFirst:
		all := r.everything()
		now = r.source.take(0, r.stageCost(all))
		r.sealed = now
		r.epoch.SourceBytes, r.epoch.Requests = int64(all.bytes), all.requests
	case Overlap:
		r.order = permutation(rand.New(rand.NewPCG(j.Seed, 3)), len(j.Sizes))
	}
	r.staged = slices.Repeat([]bool{r.policy == StageFirst}, len(j.Sizes))
	ring := max(min(j.Workers*j.Prefetch, r.steps()), r.ahead) + 1
	ls := make([]*loader, r.world)
	for k := range ls {
		ls[k] = &loader{done: make([]float64, ring), taken: make([]float64, ring), end: now}
	}
	g := 0 // steps so far
	for e := range res.Epochs {
		r.epoch = &res.Epochs[e]
		began := now
		now, g = r.trainEpoch(e, g, ls, &res)
		r.epoch.Seconds = now - began
		if e == 0 && r.policy != Direct && r.sealed == 0 { // each file was read, or had been staged before
			r.sealed = r.source.free
			for n := range r.in {
				r.in[n].idle = 0 // replication starts now
			}
		}
	}
	res.Staged = r.sealed
	res.finish(j, r.at.bytes, float64(r.steps())*j.Step.Seconds(), now)
	return res
}

// steps returns the number of steps of an epoch.
func (r *run) steps() int {
	each := (len(r.job.Sizes) + r.world - 1) / r.world
	return (each + r.job.Batch - 1) / r.job.Batch
}

// trainEpoch simulates an epoch and returns its end, and the steps so far.
func (r *run) trainEpoch(e, g int, ls []*loader, res *Result) (float64, int) {
	j, ranks, steps := r.job, r.deal(e), r.steps()
	step, began := j.Step.Seconds(), latest(ls)
	for s := range steps {
		if !r.prefetches() && s == 0 {
			r.burst(ranks, g, began, ls)
		}
		start := 0.0
		for k, l := range ls {
			if r.prefetches() || s >= j.Workers {
				l.done[g%len(l.done)] = r.load(k/j.Ranks, part(ranks[k], s, j.Batch), r.begin(l, s, g, began), r.early(l, g))
			}
			ready := max(l.end, l.done[g%len(l.done)])
			l.taken[g%len(l.taken)] = ready
			r.epoch.Waited += (ready - l.end) / float64(r.world)
			start = max(start, ready)
			l.end = ready + step
		}
		if !j.Async {
			for _, l := range ls {
				l.end = start + step
			}
		}
		if g == 0 {
			res.FirstBatch = start
		}
		g++
	}
	end := latest(ls)
	for _, l := range ls { // an epoch ends for all ranks at once
		l.end = end
	}
	return end, g
}

// prefetches reports whether batches are prefetched.
func (r *run) prefetches() bool { return r.ahead > 0 }

// part returns the batch of a step.
func part(files []int32, step, batch int) []int32 {
	return files[step*batch : min(len(files), (step+1)*batch)]
}

// burst loads the first batches of an epoch with all workers: they begin together, share the devices, and so end
// together.
func (r *run) burst(ranks [][]int32, g int, began float64, ls []*loader) {
	end, first := 0.0, min(r.job.Workers, r.steps())
	for s := range first {
		for k := range ls {
			end = max(end, r.load(k/r.job.Ranks, part(ranks[k], s, r.job.Batch), began, 0))
		}
	}
	for s := range first {
		for _, l := range ls {
			l.done[(g+s)%len(l.done)] = end
		}
	}
}

// begin returns when a worker can begin to load a batch.
func (r *run) begin(l *loader, s, g int, began float64) float64 {
	t := began // a DataLoader starts anew in each epoch
	if w := r.job.Workers; s >= w {
		t = max(t, l.done[(g-w)%len(l.done)])
	}
	if n := r.job.Workers * r.job.Prefetch; s >= n {
		t = max(t, l.taken[(g-n)%len(l.taken)])
	}
	return t
}

// early returns when the prefetch of a batch can begin.
func (r *run) early(l *loader, g int) float64 {
	if !r.prefetches() || g < r.ahead {
		return 0
	}
	return l.taken[(g-r.ahead)%len(l.taken)]
}

func latest(ls []*loader) float64 {
	return slices.MaxFunc(ls, func(a, b *loader) int { return cmp.Compare(a.end, b.end) }).end
}

// fetch is the part of a batch that one kind of place serves.
type fetch struct{ files, bytes, requests float64 }

func (f *fetch) add(size int64, requests float64) {
	f.files++
	f.bytes += float64(size)
	f.requests += requests
}

// cost returns how many seconds the fetch keeps a device busy.
func (d Device) cost(f fetch) float64 {
	c := 0.0
	if d.Bandwidth > 0 {
		c = f.bytes / float64(d.Bandwidth)
	}
	if d.IOPS > 0 {
		c = max(c, f.requests/float64(d.IOPS))
	}
	return c
}

// alone returns the seconds that a single reader needs, file by file.
func (d Device) alone(f fetch) float64 {
	c := f.requests * d.Latency.Seconds()
	if d.Bandwidth > 0 {
		c += f.bytes / float64(d.Bandwidth)
	}
	return c
}

// batch holds the files of a batch, by their place.
type batch struct {
	local, remote, source fetch
	late                  fetch   // from the source, not staged yet
	from                  []int32 // nodes that send the remote part; run.sent has the share of each
}

// load returns when a worker of a node, which begins at begin, has loaded the files. With a plan they are prefetched
// from early on.
func (r *run) load(node int, files []int32, begin, early float64) float64 {
	r.stage()
	if r.copied < r.copying && r.sealed > 0 {
		r.copyFiles(node)
	}
	b := r.sort(node, files)
	decode := float64(len(files)) * r.job.Decode.Seconds()
	if r.prefetches() {
		return max(begin, r.prefetch(node, b, early)) + decode
	}
	t := max(r.disk[node].take(begin, r.job.Disk.cost(b.local)), begin+r.job.Disk.alone(b.local))
	if b.source.files > 0 {
		t = max(r.source.take(t, r.job.Source.cost(b.source)), t+r.job.Source.alone(b.source))
	}
	switch {
	case b.late.files == 0:
	case r.policy.planned():
		t = max(t, r.source.background(r.stageCost(b.late)))
	default:
		t = max(r.source.take(t, r.job.Source.cost(b.late)), t+r.job.Source.alone(b.late))
	}
	return r.receive(node, b, t, t+r.job.Network.alone(b.remote)) + decode
}

// receive returns when a node has received the files that other nodes send from t on; alone is when a single reader on
// an idle network would have them.
func (r *run) receive(node int, b batch, t, alone float64) float64 {
	if b.remote.files == 0 {
		return t
	}
	done := max(alone, r.in[node].take(t, r.job.Network.cost(b.remote)))
	for _, n := range b.from {
		done = max(done, r.out[n].take(t, r.job.Network.cost(r.sent[n])))
		r.sent[n] = fetch{}
	}
	return done
}

// prefetch returns when the files of a batch are in the node's page cache.
func (r *run) prefetch(node int, b batch, early float64) float64 {
	t := early
	if b.late.files > 0 {
		t = max(t, r.source.background(r.stageCost(b.late)))
	}
	if b.source.files > 0 {
		t = max(t, r.source.take(early, r.job.Source.cost(b.source))+fileRequests*r.job.Source.Latency.Seconds())
	}
	local := r.disk[node].take(t, r.job.Disk.cost(b.local)) + r.job.Disk.Latency.Seconds()
	if b.local.files == 0 {
		local = t
	}
	return max(local, r.receive(node, b, t, t+r.job.Network.Latency.Seconds()))
}

// sort determines the place of each file of a batch, and counts it.
func (r *run) sort(node int, files []int32) batch {
	b, me, e := batch{}, int32(node), r.epoch
	for _, f := range files {
		size, own := r.job.Sizes[f], r.at.owner[f]
		overflow, copied := r.at.home[f] == inSource, r.hasCopy(me, f)
		late := !overflow && !r.staged[f]
		r.staged[f] = true
		switch {
		case r.policy == Direct:
			b.source.add(size, fileRequests)
			e.Source += size
			continue
		case overflow:
			b.source.add(size, r.overflowRequests(size))
			e.Source += size
		case late:
			b.late.add(size, r.lateRequests(size, !r.policy.planned()))
		case own == me || copied:
			b.local.add(size, 1)
		}
		switch {
		case late && !r.policy.planned():
			e.Source += size
		case overflow:
		case own == me:
			e.Local += size
		case copied:
			e.Replica += size
		default:
			e.Remote += size
		}
		if own != me && !copied {
			r.send(&b, own, size)
		}
	}
	e.SourceBytes += int64(b.source.bytes + b.late.bytes)
	e.Requests += b.source.requests + b.late.requests
	return b
}

// send adds a file that comes from another node.
func (r *run) send(b *batch, from int32, size int64) {
	if r.sent[from].files == 0 {
		b.from = append(b.from, from)
	}
	r.sent[from].add(size, 1)
	b.remote.add(size, 1)
	r.epoch.Wire += size
}
