package daemon

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/bivouacfs/bivouac/datapath/rate"
)

// registry returns the metrics of this node. Values are read on request.
func (d *Daemon) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	gauge := func(name, help string, f func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "bivouac", Name: name, Help: help}, f))
	}
	counter := func(name, help string, f func() float64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "bivouac", Name: name + "_total", Help: help}, f))
	}
	space := func(f func(d *Daemon) int64) func() float64 {
		return func() float64 { return float64(f(d)) }
	}
	gauge("capacity_bytes", "Bytes of file data that this node may hold.", space(func(d *Daemon) int64 { s, _ := d.data.Space(d.ctx); return s.Capacity }))
	gauge("used_bytes", "Bytes of file data that this node holds, without replicas.", space(func(d *Daemon) int64 { s, _ := d.data.Space(d.ctx); return s.Used }))
	gauge("replica_bytes", "Bytes of replicas of other nodes' files; they give way to other data.",
		space(func(d *Daemon) int64 { return d.datasets.Replicas.Bytes() }))
	counter("corrupt_scratch_blocks", "Blocks of scratch data on this node's drives that differed from their checksums.", func() float64 { return float64(d.data.Corrupt()) })
	gauge("one_copy_bytes", "Bytes of scratch on this node that should have two copies and have one since a node was lost.", func() float64 { return float64(d.rebuild.Mark().Bytes) })
	counter("restored_bytes", "Bytes of scratch that this node has copied in the place of copies lost with a node.", func() float64 { return float64(d.rebuild.Mark().Copied) })
	gauge("map_epoch", "Epoch of the cluster map.", func() float64 { return float64(d.View().Map.Epoch) })
	gauge("nodes", "Nodes of the job.", func() float64 { return float64(len(d.View().Map.Nodes)) })
	gauge("leader_silence_seconds", "Time without an answer of a leader: no quorum, or this node is cut off.", func() float64 { return d.warn.silence(time.Now()).Seconds() })
	gauge("nodes_up", "Nodes of the job that are up.", func() float64 { return float64(len(d.View().Map.Up())) })
	counter("scrub_bytes", "Bytes of datasets that the scrub has compared with checksums.", func() float64 { return float64(d.datasets.Verifier.Scrubbed().Bytes) })
	counter("scrub_bad_files", "Corrupt files that the scrub could not repair.", func() float64 { return float64(d.datasets.Verifier.Scrubbed().Bad) })
	counter("scrub_repaired_files", "Corrupt files that the scrub has fetched again.", func() float64 { return float64(d.datasets.Verifier.Scrubbed().Repaired) })
	gauge("dataset_missing_files", "Files that this node owns and could not fetch from the source.", func() float64 {
		n := int64(0)
		for _, r := range d.datasets.Fills.Report() {
			n += r.Missing
		}
		return float64(n)
	})
	gauge("transactions_in_doubt", "Transactions of other nodes whose outcome is not known yet.",
		func() float64 { return float64(d.home.Transactions().InDoubt) })
	what := map[string]string{"stage": "Limit of this node's reads from sources (rate=).", "serve": "Limit of the data that this node sends to readers (serve-rate=)."}
	for name, b := range map[string]*rate.Bucket{"stage": d.stageRate, "serve": d.serveRate} {
		if b != nil {
			gauge(name+"_limit_bytes_per_second", what[name], func() float64 { return float64(b.Stats().Limit) })
			counter(name+"_limit_waited_seconds", "Total time that reads have waited for the limit.", func() float64 { return b.Stats().Waited })
		}
	}
	gauge("buffer_bytes", "Memory in use for requests of other nodes.", func() float64 { return float64(d.rpc.Stats().Memory.InUse) })
	r.MustRegister(rpcCollector{d})
	r.MustRegister(activityCollector{&d.meter})
	r.MustRegister(trainingCollector{d})
	return r
}

// Metrics describes all metrics that a daemon can have, sorted by name.
func Metrics() []*prometheus.Desc {
	bound := rate.New(1, nil) // a limit's metrics exist only with the limit
	d := &Daemon{stageRate: bound, serveRate: bound}
	ch := make(chan *prometheus.Desc)
	go func() {
		d.registry().Describe(ch)
		close(ch)
	}()
	var descs []*prometheus.Desc
	for desc := range ch {
		descs = append(descs, desc)
	}
	slices.SortFunc(descs, func(a, b *prometheus.Desc) int { return strings.Compare(a.String(), b.String()) })
	return descs
}

var (
	requestsDesc = prometheus.NewDesc("bivouac_rpc_requests_total", "Requests answered, by operation.", []string{"op"}, nil)
	rejectedDesc = prometheus.NewDesc("bivouac_rpc_rejected_total", "Connections that this node has cut, by cause.", []string{"cause"}, nil)
)

// rpcCollector reads the server's counters when Prometheus asks.
type rpcCollector struct{ d *Daemon }

// Describe names the metrics.
func (c rpcCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- requestsDesc
	ch <- rejectedDesc
}

// Collect reads the counters.
func (c rpcCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.d.rpc.Stats()
	for op, n := range s.Requests {
		ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(n), op.String())
	}
	for cause, n := range s.Rejected {
		ch <- prometheus.MustNewConstMetric(rejectedDesc, prometheus.CounterValue, float64(n), cause)
	}
}

var (
	bytesDesc = prometheus.NewDesc("bivouac_data_bytes_total",
		"Bytes of file data that the mount has moved; reads by passthrough or from the page cache are not counted.", []string{"direction", "place"}, nil)
	metaDesc       = prometheus.NewDesc("bivouac_metadata_calls_total", "Metadata calls of the mount, by the place that answered.", []string{"place"}, nil)
	openDesc       = prometheus.NewDesc("bivouac_passthrough_opens_total", "Files opened with passthrough: the kernel reads them without the daemon.", nil, nil)
	prefetchedDesc = prometheus.NewDesc("bivouac_prefetched_files_total", "Dataset files that were prefetched into the page cache.", nil, nil)
	placeReadsDesc = prometheus.NewDesc("bivouac_source_reads_total", "Reads of datasets, by the place that was read from.", []string{"place"}, nil)
	placeFailsDesc = prometheus.NewDesc("bivouac_source_failures_total", "Reads of datasets that failed or were not answered in time, by place.", []string{"place"}, nil)
	placeLatDesc   = prometheus.NewDesc("bivouac_source_latency_seconds", "Moving average of the time of a small read, by place.", []string{"place"}, nil)
	placeWidthDesc = prometheus.NewDesc("bivouac_source_bandwidth_bytes_per_second", "Moving average of the bytes per second of one read, by place.", []string{"place"}, nil)
	timeDesc       = prometheus.NewDesc("bivouac_fuse_request_seconds", "Time to answer a request of the kernel, by operation.", []string{"op"}, nil)
)

// activityCollector reads the counters of the mount and its client.
type activityCollector struct{ m *meter }

// Describe names the metrics.
func (c activityCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{bytesDesc, metaDesc, openDesc, prefetchedDesc, placeReadsDesc, placeFailsDesc, placeLatDesc, placeWidthDesc, timeDesc} {
		ch <- d
	}
}

// Collect reads the counters; there are none before there is a mount.
func (c activityCollector) Collect(ch chan<- prometheus.Metric) {
	a, ok := c.m.activity()
	if !ok {
		return
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	count(bytesDesc, a.ReadLocal, "read", "local")
	count(bytesDesc, a.ReadRemote, "read", "remote")
	count(bytesDesc, a.ReadSource, "read", "source")
	count(bytesDesc, a.WriteLocal, "write", "local")
	count(bytesDesc, a.WriteRemote, "write", "remote")
	count(metaDesc, a.MetaLocal, "local")
	count(metaDesc, a.MetaRemote, "remote")
	count(metaDesc, a.MetaSealed, "manifest")
	count(openDesc, a.Passthrough)
	count(prefetchedDesc, a.Prefetched)
	for _, s := range a.Sources {
		count(placeReadsDesc, s.Reads, s.Place)
		count(placeFailsDesc, s.Failures, s.Place)
		ch <- prometheus.MustNewConstMetric(placeLatDesc, prometheus.GaugeValue, s.Latency, s.Place)
		ch <- prometheus.MustNewConstMetric(placeWidthDesc, prometheus.GaugeValue, s.Bandwidth, s.Place)
	}
	for op, t := range a.Times {
		ch <- prometheus.MustNewConstHistogram(timeDesc, uint64(t.Count()), t.Seconds, t.UpTo(), op)
	}
}
