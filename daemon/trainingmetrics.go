package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

var (
	samplesDesc = prometheus.NewDesc("bivouac_dataset_samples_total",
		"Files of a dataset read from their beginning, by place. Reads through a kernel view count by opens; other reads of the kernel alone do not count.", []string{"dataset", "place"}, nil)
	datasetBytesDesc = prometheus.NewDesc("bivouac_dataset_bytes_total", "Bytes of a dataset that were read, by place.", []string{"dataset", "place"}, nil)
	readWaitDesc     = prometheus.NewDesc("bivouac_dataset_wait_seconds", "How long reads of a dataset waited for the daemon.", []string{"dataset"}, nil)
	planEpochDesc    = prometheus.NewDesc("bivouac_plan_epoch", "Epoch of the access plan that is read on this node.", []string{"dataset"}, nil)
	planFollowedDesc = prometheus.NewDesc("bivouac_plan_followed", "1 if the reads on this node follow the access plan.", []string{"dataset"}, nil)
	planMissesDesc   = prometheus.NewDesc("bivouac_plan_misses_total", "Reads of the access plan that were not prefetched.", []string{"dataset"}, nil)
	planMemoryDesc   = prometheus.NewDesc("bivouac_plan_memory_bytes", "Bytes that are prefetched and not read yet.", []string{"dataset"}, nil)
	batchesDesc      = prometheus.NewDesc("bivouac_training_batches_total", "Batches of the ranks on this node.", []string{"dataset"}, nil)
	waitedDesc       = prometheus.NewDesc("bivouac_training_waited_seconds_total", "Time that the ranks on this node have waited for batches.", []string{"dataset"}, nil)
)

// trainingCollector collects metrics on how training reads the datasets on this node.
type trainingCollector struct{ d *Daemon }

// Describe names the metrics.
func (c trainingCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{samplesDesc, datasetBytesDesc, readWaitDesc, planEpochDesc, planFollowedDesc, planMissesDesc, planMemoryDesc, batchesDesc, waitedDesc} {
		ch <- d
	}
}

// Collect reads the counters. A plan's counters restart with the next plan.
func (c trainingCollector) Collect(ch chan<- prometheus.Metric) {
	a, _ := c.d.meter.activity()
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	for _, ds := range c.d.View().Datasets {
		if ds.Phase.Ended() {
			continue // its name may belong to another dataset
		}
		r := a.Reads[ds.ID]
		if p, _ := c.d.plans.Plan(ds.ID); p != nil {
			s := c.d.plans.Here(ds.ID)
			r.Prefetched.Samples, r.Prefetched.Bytes = s.Hits, s.Prefetched
			followed := 0.0
			if s.Phase == accessplan.Following {
				followed = 1
			}
			send(planEpochDesc, prometheus.GaugeValue, float64(s.Epoch), ds.Name)
			send(planFollowedDesc, prometheus.GaugeValue, followed, ds.Name)
			send(planMissesDesc, prometheus.CounterValue, float64(s.Misses), ds.Name)
			send(planMemoryDesc, prometheus.GaugeValue, float64(s.Memory), ds.Name)
		}
		for _, p := range r.Named() {
			send(samplesDesc, prometheus.CounterValue, float64(p.Samples), ds.Name, p.Name)
			send(datasetBytesDesc, prometheus.CounterValue, float64(p.Bytes), ds.Name, p.Name)
		}
		ch <- prometheus.MustNewConstHistogram(readWaitDesc, uint64(r.Waits.Count()), r.Waits.Seconds, r.Waits.UpTo(), ds.Name)
		batches, waited := int64(0), 0.0
		for _, e := range c.d.training.Here(ds.ID) {
			if e.Ranks != nil {
				batches, waited = batches+e.Ranks.Batches, waited+e.Ranks.Waited
			}
		}
		send(batchesDesc, prometheus.CounterValue, float64(batches), ds.Name)
		send(waitedDesc, prometheus.CounterValue, waited, ds.Name)
	}
}
