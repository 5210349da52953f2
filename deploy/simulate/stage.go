package simulate

// overflowRequests returns the requests for a file that stays in the source.
func (r *run) overflowRequests(size int64) float64 {
	switch {
	case r.policy == ChunkWise && r.job.Archive:
		return float64(size) / runBytes
	case r.job.Archive:
		return 1
	}
	return fileRequests
}

// lateRequests returns the requests for a file that is fetched for the first time, by staging or by a worker that waits
// for it.
func (r *run) lateRequests(size int64, demanded bool) float64 {
	switch {
	case !r.job.Archive:
		return fileRequests
	case demanded:
		return 1
	}
	return float64(size) / runBytes
}

// hasCopy reports whether a node has a replica; each node copies files in another order.
func (r *run) hasCopy(node, f int32) bool {
	if r.copied == 0 || r.at.owner[f] == node {
		return false
	}
	d := float64(r.at.draw[f]) + float64(node)*0.618033988749895
	return d-float64(int64(d)) < r.copied
}

// stageCost returns how many seconds staging the files keeps the source busy.
func (r *run) stageCost(f fetch) float64 {
	j := r.job
	c := max(j.Source.cost(f), f.requests*j.Source.Latency.Seconds()/float64(stagers*j.Nodes))
	if j.Disk.Bandwidth > 0 {
		c = max(c, f.bytes/float64(j.Disk.Bandwidth)/float64(j.Nodes))
	}
	return c
}

// everything returns the fetch of all files that fit.
func (r *run) everything() (all fetch) {
	for f, size := range r.job.Sizes {
		if r.at.home[f] != inSource {
			all.add(size, r.lateRequests(size, false))
		}
	}
	return all
}

// stage stages files in the idle time of the source, if there is no plan.
func (r *run) stage() {
	for ; len(r.order) > 0; r.order = r.order[1:] {
		f := r.order[0]
		if r.staged[f] || r.at.home[f] == inSource {
			continue
		}
		var one fetch
		one.add(r.job.Sizes[f], r.lateRequests(r.job.Sizes[f], false))
		cost := r.stageCost(one)
		if cost > r.source.idle {
			return
		}
		r.source.idle -= cost
		r.staged[f] = true
		r.epoch.SourceBytes += int64(one.bytes)
		r.epoch.Requests += one.requests
	}
}

// copyFiles makes a node fetch replicas in the idle time of its link.
func (r *run) copyFiles(node int) {
	q := &r.in[node]
	missing := r.at.bytes * float64(r.job.Nodes-1) / float64(r.job.Nodes)
	if r.job.Network.Bandwidth == 0 || missing == 0 {
		r.copied = r.copying
		return
	}
	cost := missing / float64(r.job.Network.Bandwidth)
	more := min(q.idle/cost/float64(r.job.Nodes), r.copying-r.copied) // each node adds its share
	q.idle = max(0, q.idle-more*cost*float64(r.job.Nodes))
	r.copied += more
	r.epoch.Wire += int64(more * missing * float64(r.job.Nodes))
}
