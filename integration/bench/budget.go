package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

var budgetFigure = figure{
	name:  "budget",
	about: "requests of the kernel and calls to other nodes for one operation, by one process on node 1 in a directory that another node keeps",
	run:   budget,
}

// budget counts the calls of operations, in an order in which they can follow each other.
func budget(ctx context.Context, b *bench) error {
	n := b.amount(500)
	dir, err := b.camp.away(1)
	if err != nil {
		return err
	}
	if err := b.expire(ctx); err != nil { // a recent change by another node is not leased
		return err
	}
	for _, op := range []string{"create", "stat", "open", "unlink", "small", "rename", "mkdir", "rmdir"} {
		before, err := b.camp.counters(1)
		if err != nil {
			return err
		}
		between, err := b.camp.counters(1) // the cost of reading the counters
		if err != nil {
			return err
		}
		if _, err := load(op, []string{dir}, n); err != nil {
			return err
		}
		after, err := b.camp.counters(1)
		if err != nil {
			return err
		}
		b.count(op+": request", before.Mount.Calls, between.Mount.Calls, after.Mount.Calls, n)
		b.count(op+": call", before.RPC.Calls, between.RPC.Calls, after.RPC.Calls, n)
	}
	return nil
}

// count records the calls for each of n operations, in total and by kind. It omits calls made less than once in ten
// operations, which have other causes.
func (b *bench) count(what string, before, between, after map[string]int64, n int) {
	total := 0.0
	each := make(map[string]float64)
	for k := range after {
		asking := between[k] - before[k]
		each[k] = float64(after[k]-between[k]-asking) / float64(n)
		if each[k] < 0.1 || k == "report" {
			delete(each, k)
			continue
		}
		total += each[k]
	}
	b.take(what+"s", "", armBivouac, total)
	for _, k := range slices.Sorted(maps.Keys(each)) {
		b.take(fmt.Sprintf("%s %s", what, k), "", armBivouac, each[k])
	}
}
