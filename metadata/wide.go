package metadata

import (
	"context"
	"fmt"
	"syscall"
)

// A directory with very many entries is wide: its entries are in sections, one
// on each node that was Up in the epoch in which it was spread, and the hash of
// a name says which (cluster.Spread). Its inode stays at its home.

// Elsewhere is the answer of a node that does not keep the entry it was asked
// for. The caller knows now where to ask: the directory Dir is spread over the
// nodes of Epoch, or, with Epoch 0, its home knows.
type Elsewhere struct {
	Dir   Ino
	Epoch Epoch
}

// Error is error.
func (e *Elsewhere) Error() string {
	if e.Epoch == 0 {
		return fmt.Sprintf("directory %v has no section here: %v", e.Dir, syscall.EREMOTE)
	}
	return fmt.Sprintf("directory %v is spread in epoch %d: %v", e.Dir, e.Epoch, syscall.EREMOTE)
}

// Unwrap is the errno, by which it is known on the wire.
func (e *Elsewhere) Unwrap() error { return syscall.EREMOTE }

// Unsettled is the answer of a node where the entries of a directory are just
// arriving or leaving: the same call works in a moment, here or elsewhere.
type Unsettled struct{ Dir Ino }

// Error is error.
func (e *Unsettled) Error() string {
	return fmt.Sprintf("directory %v is being spread: %v", e.Dir, syscall.EAGAIN)
}

// Unwrap is the errno, by which it is known on the wire.
func (e *Unsettled) Unwrap() error { return syscall.EAGAIN }

// Section names one node's section of a wide directory. Gen tells one life of
// the directory as a wide one from another; a later one is greater.
type Section struct {
	Dir Ino
	Gen uint64
}

// NewSection is what a node has to know to keep a section: the nodes of all
// sections, in order, the seed of the hash, and what new entries inherit.
type NewSection struct {
	Section
	Epoch Epoch
	Seed  uint64
	Nodes []NodeID
	Attr  Attr
}

// SectionOrder is what a home tells a section to become.
type SectionOrder uint8

// The orders of a home.
const (
	SectionOpen   SectionOrder = 1 // it is in force: its entries are the directory's
	SectionDrop   SectionOrder = 2 // it is of no use: forget it and what it has
	SectionFreeze SectionOrder = 3 // accept nothing, if it is empty; ENOTEMPTY
	SectionThaw   SectionOrder = 4 // undo that freeze
	SectionAttr   SectionOrder = 5 // new entries inherit from these attributes
)

// SectionChange is an order with what belongs to it.
type SectionChange struct {
	Section
	Order  SectionOrder
	Freeze uint64 // which freeze: of SectionFreeze and SectionThaw
	Attr   Attr   // of SectionAttr and SectionOpen
}

// SectionReport is what a section tells its home: how it is, and what has
// changed in the directory's attributes by what was done here.
type SectionReport struct {
	Section
	Freeze  uint64 // the freeze under which it is; 0 is none
	Subdirs uint32 // directories entered here
	Mtime   Time   // the last change of an entry here
}

// SectionState is what a home knows of a section.
type SectionState uint8

// The answers to a report.
const (
	SectionWait   SectionState = 1 // it is not decided: ask again
	SectionInUse  SectionState = 2 // it is in force, and under no freeze
	SectionUnused SectionState = 3 // it never was, or is no more
)

// SectionAnswer is a home's answer to a report. Attr is what new entries inherit.
type SectionAnswer struct {
	State SectionState
	Attr  Attr
}

// Sections is what the nodes of a wide directory do for each other. Filling,
// orders and reports may come twice; a Gen that is not the present one is
// ESTALE, or nothing where nothing is to be done.
type Sections interface {
	// MakeSection begins an empty section that is not yet in force.
	MakeSection(ctx context.Context, n NewSection) error
	// FillSection enters es into a section that is not yet in force; one
	// with Ino 0 is taken out.
	FillSection(ctx context.Context, s Section, es []Entry) error
	// ChangeSection carries an order out.
	ChangeSection(ctx context.Context, c SectionChange) error
	// ReportSection tells the home of the directory about the section of the
	// node by.
	ReportSection(ctx context.Context, by NodeID, r SectionReport) (SectionAnswer, error)
	Namer
}

// Namer lists what a node has of a directory.
type Namer interface {
	// ReadNames is ReadDir of the entries that this node keeps, without their
	// Attrs, for a caller that knows dir to be spread in epoch; with epoch 0,
	// not to be wide. Elsewhere if that is not so.
	ReadNames(ctx context.Context, dir Ino, epoch Epoch, after string, limit int) ([]Entry, error)
}
