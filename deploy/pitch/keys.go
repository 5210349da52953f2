package pitch

import (
	"reflect"

	"go.yaml.in/yaml/v3"

	"github.com/bivouacfs/bivouac/stagein"
)

// OptionKeys documents the keys of --bivouac-opts, in the order in which a reader needs them.
var OptionKeys = []stagein.Key{
	{Name: "wait", Values: "manifest|all|none", Default: "manifest",
		Meaning: "start the batch script when the tree is readable, when every file is on the nodes, or at once"},
	{Name: "capacity", Values: "SIZE", Default: "all free space", Meaning: "space that the job may use on each node"},
	{Name: "scratch", Values: "SIZE|PERCENT", Default: "the site's: 10%, at most 64G",
		Meaning: "space on each node that datasets leave to scratch; dataset files that do not fit beside it stay in the source"},
	{Name: "rate", Values: "SIZE", Default: "none", Meaning: "limit on each node's reads from sources, in bytes per second"},
	{Name: "serve-rate", Values: "SIZE", Default: "none", Meaning: "limit on the data that each node sends to readers on other nodes, in bytes per second"},
	{Name: "ahead", Values: "SIZE", Default: "a sixteenth of the memory, 64M to 1G",
		Meaning: "memory on each node for prefetched files, for each dataset with an access plan; 0 switches prefetch off"},
	{Name: "scrub", Values: "SIZE|off", Default: "32M",
		Meaning: "bytes per second that each node compares with checksums in the background; corrupt files are fetched again"},
	{Name: "checksums", Values: "on|off", Default: "on",
		Meaning: "keep checksums of scratch data in memory on each node, and fail reads whose bytes differ; off saves processor time"},
	{Name: "verify", Values: "reads", Default: "off",
		Meaning: "compare each piece of a dataset with its checksum before its first read, local or remote; costs processor time"},
	{Name: "kernel-view", Values: "auto|off", Default: "auto", Meaning: "let the kernel read small local files without the daemon (Linux 6.5 or later)"},
	{Name: "network", Values: "NET+NET", Default: "the site's: all", Meaning: "networks that daemons listen on and connect by, each an interface or a CIDR; connections are spread over them"},
	{Name: "encrypt", Values: "tls", Default: "the site's: off", Meaning: "encrypt and authenticate the traffic between daemons; costs processor time"},
	{Name: "auth", Values: "frames", Default: "the site's: off", Meaning: "authenticate the traffic between daemons without encryption; costs less"},
	{Name: "seed", Values: "N", Default: "derived from the job ID; with the site's keep, from the user", Meaning: "seed for placing files on nodes"},
	{Name: "failure-timeout", Values: "TIME", Default: "the site's: 15s", Meaning: "a node that is silent for this long is declared lost; 2s to 45s"},
	{Name: "start-timeout", Values: "TIME", Default: "the site's", Meaning: "time limit until the filesystem is up; at most the site's start_timeout"},
	{Name: "log", Values: "debug", Default: "off", Meaning: "log every request of the mount"},
}

// siteKeys documents each key of the site's configuration.
var siteKeys = map[string]stagein.Key{
	"store":            {Values: "LIST", Meaning: "one directory for each drive; each exists, is owned by root and has mode 755"},
	"mount":            {Values: "DIR", Meaning: "jobs are mounted at DIR/JOBID; not below /tmp"},
	"run":              {Values: "DIR", Meaning: "sockets and state; at most 80 bytes. If you change it, set run= in plugstack.conf"},
	"log":              {Values: "DIR", Meaning: "one log per job, kept only if something went wrong. If you change it, set log= in plugstack.conf"},
	"port":             {Values: "N", Meaning: "the first port that jobs use"},
	"ports":            {Values: "N", Meaning: "number of ports, at least 64"},
	"start_timeout":    {Values: "TIME", Meaning: "time limit of the prolog; less than Slurm's PrologEpilogTimeout"},
	"epilog_timeout":   {Values: "TIME", Meaning: "time limit for the end of a job; 0 is 300 s with stage-out, 20 s without"},
	"munge":            {Values: "auto|require|off", Meaning: "how nodes get the job key: by munge, or with the submission; auto: by munge if it works at submission"},
	"munge_socket":     {Values: "PATH", Default: "munge's", Meaning: "munge's socket"},
	"keep":             {Values: "TIME", Meaning: "the datasets of a job stay on its nodes this long, for the next job of the same user there; other users' jobs remove them first. 0: they go with the job"},
	"failure_timeout":  {Values: "TIME", Meaning: "a node silent for this long is declared lost; 2s to 45s. All timings of failures follow from it; jobs can choose"},
	"memory":           {Values: "SIZE", Meaning: "memory limit of a daemon, such as 4G, at least 256M; 0 is none"},
	"scratch":          {Values: "SIZE|PERCENT", Default: "10%, at most 64G", Meaning: "space on each node that datasets leave to scratch; jobs can choose"},
	"kernel_view":      {Values: "auto|off", Meaning: "off: no job gets kernel views"},
	"metrics_textfile": {Values: "DIR", Default: "none", Meaning: "node_exporter's textfile directory: each job's metrics are written to it every 15 s"},
	"log_format":       {Values: "text|json", Meaning: "format of the jobs' logs"},
	"network":          {Values: "LIST", Default: "all", Meaning: "networks that daemons listen on and connect by, each an interface or a CIDR; jobs can choose"},
	"encrypt":          {Values: "tls", Default: "off", Meaning: "encrypt and authenticate the traffic between daemons of all jobs"},
	"auth":             {Values: "frames", Default: "off", Meaning: "authenticate the traffic between daemons of all jobs without encryption; jobs can choose encrypt=tls"},
}

// KeeperMetrics documents the metrics that a keeper adds to those of its daemon; Values is the unit.
var KeeperMetrics = []stagein.Key{
	{Name: "bivouac_daemon_up", Values: "number", Meaning: "1 if the daemon answers its keeper, else 0."},
	{Name: "bivouac_daemon_restarts_total", Values: "restarts", Meaning: "Restarts of the daemon by its keeper."},
}

// SiteKeys documents the keys of the site's configuration, in the order of Site, with DefaultSite's values.
func SiteKeys() ([]stagein.Key, error) {
	site := DefaultSite()
	b, err := yaml.Marshal(site)
	if err != nil {
		return nil, err
	}
	values := make(map[string]yaml.Node)
	if err := yaml.Unmarshal(b, &values); err != nil {
		return nil, err
	}
	var keys []stagein.Key
	for f := range reflect.TypeOf(site).Fields() {
		name := f.Tag.Get("yaml")
		k := siteKeys[name]
		k.Name = name
		if v := values[name]; k.Default == "" {
			if k.Default = v.Value; v.Kind == yaml.SequenceNode {
				k.Default = v.Content[0].Value
			}
		}
		keys = append(keys, k)
	}
	return keys, nil
}
