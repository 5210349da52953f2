package ingest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/ingest"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// mortal is a job whose shares die after a number of puts and are restarted from their last checkpoint.
type mortal struct {
	*jobtest.Job
	t     *testing.T
	mu    sync.Mutex
	left  int         // guarded by mu; puts until a share dies; chance decides which one
	parts []mortalOne // guarded by mu
	went  int         // guarded by mu; tries that resumed from a checkpoint
	grow  int         // guarded by mu; how many more puts each life has than the one before
	// forgets reports whether a checkpoint is lost, so that the previous one counts; nil means never.
	forgets func() bool // guarded by mu
}

type mortalOne struct {
	try   uint16
	mark  []byte               // the last checkpoint, as JSON
	of    uint16               // the try that wrote the mark
	seam  []byte               // its own boundary, once sent
	heard chan ingest.Boundary // the boundary received, kept for the next try
	tries map[uint16]*bytes.Buffer
}

func newMortal(t *testing.T, j *jobtest.Job, lives int) *mortal {
	m := &mortal{Job: j, t: t, parts: make([]mortalOne, 16), left: lives}
	for i := range m.parts {
		m.parts[i].tries, m.parts[i].heard = make(map[uint16]*bytes.Buffer), make(chan ingest.Boundary, 1)
	}
	j.Config, j.Again = m.begin, m.die
	j.Target = &stageintest.MemTarget{OnPut: func(metadata.NodeID, metadata.Ino, int) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.left--; m.left == 0 {
			lives += m.grow
			m.left = lives
			return syscall.EHOSTDOWN
		}
		return nil
	}}
	return m
}

// begin configures a share to resume from the last checkpoint of its part.
func (m *mortal) begin(i int, cfg *ingest.Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.parts[i]
	cfg.Part.Try = p.try
	try := p.try
	cfg.Checkpointed = func(k ingest.Checkpoint) {
		b, err := json.Marshal(k)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.forgets != nil && m.forgets() {
			return
		}
		if p.mark, p.of = b, try; err != nil {
			m.t.Error(err)
		}
	}
	if p.mark != nil {
		cfg.Resume = new(ingest.Checkpoint)
		if err := json.Unmarshal(p.mark, cfg.Resume); err != nil {
			m.t.Error(err)
		}
		cfg.Before = bytes.NewReader(p.tries[p.of].Bytes())
		m.went++
	}
	hear := cfg.BoundaryIn
	cfg.BoundaryIn = func(ctx context.Context) (ingest.Boundary, error) {
		select {
		case s := <-p.heard:
			p.heard <- s
			return s, nil
		default:
		}
		s, err := hear(ctx)
		if err == nil {
			p.heard <- s
		}
		return s, err
	}
	tell := cfg.BoundaryOut
	cfg.BoundaryOut = func(ctx context.Context, s ingest.Boundary) error {
		b, err := json.Marshal(s)
		if err != nil || p.seam == nil {
			p.seam = b
			return errors.Join(err, tell(ctx, s))
		}
		if !bytes.Equal(b, p.seam) {
			return fmt.Errorf("boundary %s, was %s", b, p.seam)
		}
		return nil
	}
}

// die ends a try and deletes the objects stored after its checkpoint, which belong to no file.
func (m *mortal) die(i int, w *bytes.Buffer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.parts[i]
	p.tries[p.try] = bytes.NewBuffer(bytes.Clone(w.Bytes()))
	p.try++
	var kept []stagein.Try
	if p.mark != nil {
		var k ingest.Checkpoint
		if err := json.Unmarshal(p.mark, &k); err != nil {
			m.t.Error(err)
		}
		kept = k.Kept
	}
	plan := *m.Plan
	plan.Parts = []stagein.Part{m.Plan.Parts[i]}
	plan.Parts[0].Try = p.try
	void := make(map[uint16]uint32)
	for try := range p.try {
		x := stagein.Part{Index: uint16(i), Try: try}
		void[uint16(x.Number(len(m.Plan.Parts)))] = 0
	}
	for _, k := range kept {
		void[k.Number] = k.Kept
	}
	m.Target.Mu.Lock()
	defer m.Target.Mu.Unlock()
	for k := range m.Target.Objects {
		if upTo, ok := void[k.Ino.Part()]; ok && k.Ino.Seq() > upTo {
			delete(m.Target.Objects, k)
		}
	}
	return p.try < 60
}

// FuzzCheckpoint: a share that resumes from an arbitrary checkpoint ends.
func FuzzCheckpoint(f *testing.F) {
	archive := stageintest.WriteTar(f, tar.FormatPAX, stageintest.RandomMembers(rand.New(rand.NewPCG(1, 5)), tar.FormatPAX, 10))
	f.Add([]byte(`{"at":1024,"records":1,"some":true,"kept":[{"number":0,"kept":7}]}`))
	f.Add([]byte(`{"at":512,"mtime":5,"need":-1,"kept":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m ingest.Checkpoint
		if json.Unmarshal(b, &m) != nil {
			return
		}
		for _, a := range [][]byte{archive, stageintest.PackGzip(t, archive)} {
			j := jobtest.TarJob(a, 1)
			j.Config = func(_ int, cfg *ingest.Config) { cfg.Resume, cfg.Before = &m, bytes.NewReader(nil) }
			_, _ = j.Run(context.Background()) // any result is allowed
		}
	})
}

// TestCheckpoints: shares that die again and again resume from their checkpoints, and the tree is the same as without
// failures.
func TestCheckpoints(t *testing.T) {
	went := 0
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			archive := stageintest.WriteTar(t, tar.FormatPAX, stageintest.RandomMembers(r, tar.FormatPAX, 120))
			want, err := stageintest.TwinTar(archive)
			if err != nil {
				t.Fatal(err)
			}
			j := jobtest.TarJob(archive, 1+int(seed%3))
			if seed%4 == 3 {
				j = jobtest.TarJob(stageintest.PackGzip(t, archive), 1)
			}
			j.Region, j.Lim = 4096, jobtest.Bounds{Piece: 2048, Carry: 1024, Checkpoint: 4096}
			m := newMortal(t, j, 40+int(seed)*5)
			got, err := j.Run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			stageintest.CheckTree(t, got, want)
			went += m.went
		})
	}
	if went == 0 {
		t.Error("no share went on from a checkpoint")
	}
}

// TestCheckpointThatIsNone: a share resumes only from a checkpoint that is possible in its part, and only with all the
// records before it.
func TestCheckpointThatIsNone(t *testing.T) {
	archive := stageintest.WriteTar(t, tar.FormatPAX, stageintest.RandomMembers(rand.New(rand.NewPCG(1, 5)), tar.FormatPAX, 40))
	for name, m := range map[string]ingest.Checkpoint{
		"no tries":     {Position: ingest.Position{At: 512}},
		"not aligned":  {Position: ingest.Position{At: 513}, Kept: []stagein.Try{{}}},
		"negative":     {Position: ingest.Position{At: -512}, Kept: []stagein.Try{{}}},
		"behind":       {Position: ingest.Position{At: int64(len(archive)) + 512}, Kept: []stagein.Try{{}}},
		"more records": {Position: ingest.Position{At: 512}, Records: 3, Kept: []stagein.Try{{}}},
	} {
		j := jobtest.TarJob(archive, 1)
		j.Config = func(_ int, cfg *ingest.Config) { cfg.Resume, cfg.Before = &m, bytes.NewReader(nil) }
		if _, err := j.Run(context.Background()); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EIO) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
