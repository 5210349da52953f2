package dataset

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// The kinds of tasks.
const (
	kindVerify = "verify"
	kindRepair = "repair"
)

// VerifySpec selects the dataset and the kind of verification. It is the body of POST /v1/verify.
type VerifySpec struct {
	Name   string `json:"name"`
	SHA256 bool   `json:"sha256,omitempty"` // also list the SHA-256 of every file
	Keep   bool   `json:"keep,omitempty"`   // do not repair bad files
	Source bool   `json:"source,omitempty"` // also read the overflow from the source
}

// VerifyResult is the result of a verification.
type VerifyResult struct {
	Files    int64     `json:"files"` // files read
	Bytes    int64     `json:"bytes"`
	Unsummed int64     `json:"unsummed"`  // files that were read and have no checksum
	Bad      int64     `json:"bad"`       // files that differ from the staged ones, or cannot be read
	Repaired int64     `json:"repaired"`  // files that were bad and are correct after a refetch
	Overflow int64     `json:"overflow"`  // files that are only in the source, and were not read
	Replicas int64     `json:"replicas"`  // replicas read
	BadFiles []BadFile `json:"bad_files"` // the first files that were bad or repaired
}

// BadFile is a file that differs from the staged one.
type BadFile struct {
	Path     source.Name  `json:"path"` // in the dataset
	Ino      metadata.Ino `json:"ino,omitempty"`
	Host     string       `json:"host"`
	Error    string       `json:"error"`
	Repaired bool         `json:"repaired,omitempty"` // it was refetched and is correct now
	Source   bool         `json:"source,omitempty"`   // it is only in the source
}

// maxBadFiles is how many files a node lists; only these are repaired.
const maxBadFiles = 1000

// add adds the result of a node. A file with bad pieces on several nodes counts once.
func (r *VerifyResult) add(o VerifyResult) {
	r.Files, r.Bytes, r.Unsummed, r.Bad = r.Files+o.Files, r.Bytes+o.Bytes, r.Unsummed+o.Unsummed, r.Bad+o.Bad
	r.Overflow, r.Replicas = r.Overflow+o.Overflow, r.Replicas+o.Replicas
	for _, f := range o.BadFiles {
		if slices.ContainsFunc(r.BadFiles, func(was BadFile) bool { return was.Ino == f.Ino }) {
			r.Bad--
			continue
		}
		r.BadFiles = append(r.BadFiles, f)
	}
}

// verifyRequest asks a node to verify its part of a dataset.
type verifyRequest struct {
	Dataset metadata.DatasetID `json:"dataset"`
	SHA256  bool               `json:"sha256,omitempty"`
	Source  bool               `json:"source,omitempty"`
	Only    []metadata.Ino     `json:"only,omitempty"` // empty means all
}

// Verifier verifies and repairs datasets.
type Verifier struct {
	n      node.Node
	tasks  *tasks.Runner
	hosts  []string
	files  *Files
	tables *Tables
	fills  *Fills
	store  *chunkstore.Store
	local  datapath.Store // this node's data; missing files are fetched
	stores *Stores
	drop   atomic.Pointer[DropPagesFunc]
	scrub  scrub
}

func (v *Verifier) host() string { return v.hosts[v.n.Self()] }

func (v *Verifier) register() {
	v.tasks.Register(kindVerify, tasks.KindOf(v.prepareVerify))
	v.tasks.Register(kindRepair, tasks.KindOf(v.prepareRepair))
}

// Verify has all nodes read their parts of a dataset in parallel and compare them with the checksums taken when it was
// staged. If the chunks of a striped file have no checksums, the first node of the stripe reads the whole file; the
// files of a lost node are read by its stand-ins. Bad files are refetched from the source, unless s says not to.
// Overflow is read only if s asks for it.
func (v *Verifier) Verify(ctx context.Context, s VerifySpec) (VerifyResult, error) {
	ds, ok := v.n.View().Active(s.Name)
	x, here := v.tables.get(ds.ID)
	if !ok || !here || ds.Phase != cluster.Sealed {
		return VerifyResult{}, fmt.Errorf("no dataset named %q is ready: run bivouac status to see the datasets: %w", s.Name, syscall.EINVAL)
	}
	q := verifyRequest{Dataset: ds.ID, SHA256: s.SHA256, Source: s.Source}
	res, err := v.all(ctx, x, q)
	if !s.Source {
		res.Overflow += x.summary.Overflow.Files
	}
	if err != nil || res.Bad == 0 || s.Keep {
		return res, err
	}
	err = v.repair(ctx, x, q, &res)
	if err == nil && s.SHA256 && res.Repaired > 0 {
		_, err = v.all(ctx, x, q) // lists repaired files, too
	}
	return res, err
}

func (v *Verifier) all(ctx context.Context, x table, q verifyRequest) (VerifyResult, error) {
	var mu sync.Mutex
	var sum VerifyResult // guarded by mu
	for _, n := range v.n.View().Map.Nodes {
		// The files of a node that is Down are on other nodes.
		if files := x.summary.PerNode[n.ID].Files; files > 0 && !node.Serving(n) && n.State != cluster.Down {
			sum.Bad += files
			sum.BadFiles = append(sum.BadFiles, BadFile{Host: n.Host, Error: fmt.Sprintf("%d files are on this node, which is %v", files, n.State)})
		}
	}
	t, err := tasks.NewRequest(v.taskID(kindVerify), kindVerify, q)
	if err != nil {
		return sum, err
	}
	err = v.tasks.RunAll(ctx, t, func(_ metadata.NodeID, s tasks.State) {
		var r VerifyResult
		if ok, err := s.Decode(&r); ok && err == nil {
			mu.Lock()
			defer mu.Unlock()
			sum.add(r)
		}
	})
	return sum, err
}

func (v *Verifier) taskID(kind string) string {
	return kind + "-" + strconv.Itoa(int(v.n.Self())) + "-" + strconv.FormatInt(time.Now().UnixNano(), 10)
}

func (v *Verifier) prepareVerify(_ metadata.NodeID, q *verifyRequest) (tasks.Task, error) {
	var result atomic.Pointer[VerifyResult]
	return tasks.Task{
		Run: func(ctx context.Context) error {
			r, err := v.run(ctx, q)
			result.Store(r)
			return err
		},
		Detail: func(bool) any { return result.Load() },
	}, nil
}
