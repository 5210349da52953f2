package fill

import (
	"context"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Internals for the external tests.
const (
	FirstWorkers = firstWorkers
	LargePiece   = largePiece
	MaxFailing   = maxFailing
	MaxTries     = maxTries
	MinInFlight  = minInFlight
	OpenPerRead  = openPerRead
)

type JournalFile = journalFile

func (f *Fill) Config() *Config { return &f.cfg }

func (f *Fill) Present(p PieceID) bool { return f.present.has(p) }

func (f *Fill) MarkPresent(p PieceID, n int64) { f.markPresent(p, n) }

func (f *Fill) PresentPieces() int64 {
	f.present.mu.Lock()
	defer f.present.mu.Unlock()
	return int64(f.present.n)
}

func (f *Fill) Flights() (all []PieceID) {
	f.flights.mu.Lock()
	defer f.flights.mu.Unlock()
	for p := range f.flights.all {
		all = append(all, p)
	}
	return all
}

func (f *Fill) Await(ctx context.Context, p PieceID) error { return f.await(ctx, p, f.ask) }

func (f *Fill) List(m cluster.Map) ([]PieceID, error) { return f.list(m) }

func (f *Fill) WatchOffers(ctx context.Context) { f.watchOffers(ctx) }

// WithdrawAll withdraws the offers of all nodes; with closed set, as Close does.
func (f *Fill) WithdrawAll(closed bool) {
	if closed {
		f.flights.close()
	}
	f.flights.withdraw(func(metadata.NodeID) bool { return true })
}

func (f *Fill) SetJournal(wrap func(JournalFile) JournalFile) { f.journal.f = wrap(f.journal.f) }

func (f *Fill) StartupDemand() (served func()) { return f.startup.demand(0) }

func (f *Fill) StartupQueue() int {
	f.startup.mu.Lock()
	defer f.startup.mu.Unlock()
	return len(f.startup.queue)
}

// NoneStriped tells the fill that no file is striped.
func (f *Fill) NoneStriped() { f.striped = false }
