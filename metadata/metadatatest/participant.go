package metadatatest

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// far and the others are inodes with another home.
var (
	farFile = metadata.LiveIno(7, 5000)
	farDir  = metadata.LiveIno(7, 5001)
)

// Participant is a store that is a participant in transactions.
type Participant interface {
	Store
	metadata.Participant
}

// RunParticipant tests the stores that open returns as participants: each is the store of node 0, with an empty live
// realm.
func RunParticipant(t *testing.T, open func(t *testing.T) Participant) {
	tests := []struct {
		name string
		test func(*partner)
	}{
		{"Keep", testEditKeep},
		{"Enter", testEditEnter},
		{"Leave", testEditLeave},
		{"Replace", testEditReplace},
		{"ReplaceRefuses", testEditReplaceRefuses},
		{"Swap", testEditSwap},
		{"Make", testEditMake},
		{"DropWhileMade", testDropWhileMade},
		{"Drop", testEditDrop},
		{"Links", testEditLinks},
		{"Moved", testEditMoved},
		{"Refuses", testEditRefuses},
		{"Ends", testTxEnds},
		{"Busy", testTxBusy},
		{"Together", testTxTogether},
		{"Waits", testTxWaits},
		{"GivesUpWaiting", testTxGivesUpWaiting},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t)
			tt.test(&partner{fixture: fixture{T: t, s: s}, p: s})
		})
	}
}

// partner is a participant under test, with the transactions of node 7.
type partner struct {
	fixture
	p  Participant
	tx uint64
}

func (f *partner) newTx() metadata.TxID {
	f.tx++
	return metadata.TxID(metadata.LiveIno(7, f.tx))
}

func (f *partner) prepare(edits ...metadata.Edit) (metadata.TxID, metadata.Vote) {
	f.Helper()
	tx := f.newTx()
	v, err := f.p.Prepare(ctx, tx, edits)
	f.want(err, nil, "Prepare(%+v)", edits)
	return tx, v
}

func (f *partner) refused(want error, edits ...metadata.Edit) {
	f.Helper()
	_, err := f.p.Prepare(ctx, f.newTx(), edits)
	f.want(err, want, "Prepare(%+v)", edits)
}

func (f *partner) commit(tx metadata.TxID) {
	f.Helper()
	f.want(f.p.Commit(ctx, tx), nil, "Commit(%v)", tx)
}

func (f *partner) abort(tx metadata.TxID) {
	f.Helper()
	f.want(f.p.Abort(ctx, tx), nil, "Abort(%v)", tx)
}

// done prepares and commits.
func (f *partner) done(edits ...metadata.Edit) metadata.Vote {
	f.Helper()
	tx, v := f.prepare(edits...)
	f.commit(tx)
	return v
}

// far fails the test unless dir names an inode of another node.
func (f *partner) far(d metadata.Ino, name string, ino metadata.Ino, mode uint32) {
	f.Helper()
	e, err := f.s.Lookup(ctx, d, name)
	f.want(err, nil, "Lookup(%v, %q)", d, name)
	if e.Ino != ino || e.Mode&fmtM != mode&fmtM || e.Attr != nil {
		f.Fatalf("Lookup(%v, %q) = %+v, want %v without attributes", d, name, e, ino)
	}
}

func onName(kind metadata.EditKind, d metadata.Ino, name string, ino metadata.Ino, mode uint32) metadata.Edit {
	return metadata.Edit{Kind: kind, Dir: d, Name: name, Ino: ino, Mode: mode}
}

func onInode(kind metadata.EditKind, ino metadata.Ino) metadata.Edit {
	return metadata.Edit{Kind: kind, Ino: ino}
}

func testEditKeep(f *partner) {
	a := f.create(root, "f")
	f.refused(syscall.EEXIST, onName(metadata.EditKeep, root, "f", 0, 0))
	f.refused(syscall.ESTALE, onName(metadata.EditKeep, root, "f", farFile, 0))
	f.refused(syscall.ESTALE, onName(metadata.EditKeep, root, "none", a.Ino, 0))
	before := f.attr(root)
	f.done(onName(metadata.EditKeep, root, "f", a.Ino, 0), onName(metadata.EditKeep, root, "none", 0, 0))
	f.names(root, "f", a.Ino)
	f.names(root, "none", 0)
	if after := f.attr(root); after != before {
		f.Errorf("a directory whose names are kept is %+v, was %+v", after, before)
	}
}

func testEditEnter(f *partner) {
	near := f.create(root, "near")
	f.refused(syscall.EEXIST, onName(metadata.EditEnter, root, "near", farFile, reg))
	f.old(root)
	before := f.attr(root).Ctime
	if v := f.done(onName(metadata.EditEnter, root, "f", farFile, reg|0o644)); v.Old != nil || v.Attr != nil {
		f.Errorf("vote = %+v", v)
	}
	f.touched(before, root)
	f.far(root, "f", farFile, reg)
	f.nlink(root, 2)
	f.done(onName(metadata.EditEnter, root, "d", farDir, dir|0o755))
	f.far(root, "d", farDir, dir)
	f.nlink(root, 3)
	f.names(root, "near", near.Ino)
	a, err := f.s.Create(ctx, root, "f", metadata.New{Mode: reg})
	f.want(err, syscall.EEXIST, "Create over a far entry")
	if a.Ino != farFile || a.Mode&fmtM != reg {
		f.Errorf("Create over a far entry = %+v", a)
	}
	es := f.list(root, 10)
	if len(es) != 3 || es[0].Ino != farDir || es[0].Attr != nil || es[2].Attr == nil {
		f.Errorf("ReadDir = %+v", es)
	}
}

func testEditLeave(f *partner) {
	a := f.create(root, "f")
	f.done(onName(metadata.EditEnter, root, "d", farDir, dir))
	f.refused(syscall.ESTALE, onName(metadata.EditLeave, root, "f", farFile, 0))
	f.refused(syscall.ESTALE, onName(metadata.EditLeave, root, "none", a.Ino, 0))
	f.old(root)
	before := f.attr(root).Ctime
	f.done(onName(metadata.EditLeave, root, "f", a.Ino, 0), onName(metadata.EditLeave, root, "d", farDir, 0))
	f.touched(before, root)
	f.nlink(a.Ino, 1) // only the directory's inode changes
	f.nlink(root, 2)
	f.names(root, "f", 0)
	f.names(root, "d", 0)
}

func testEditReplace(f *partner) {
	if v := f.done(onName(metadata.EditReplace, root, "f", farFile, reg)); v.Old != nil {
		f.Errorf("vote = %+v", v)
	}
	if v := f.done(onName(metadata.EditReplace, root, "f", farFile, reg)); v.Old == nil || v.Old.Ino != farFile {
		f.Errorf("vote where it is there already = %+v", v)
	}
	if v := f.done(onName(metadata.EditReplace, root, "f", farFile+9, reg)); v.Old == nil || v.Old.Ino != farFile || v.Old.Attr != nil {
		f.Errorf("vote over a far file = %+v", v)
	}
	f.far(root, "f", farFile+9, reg)
	near := f.create(root, "near")
	f.link(near.Ino, root, "other")
	v := f.done(onName(metadata.EditReplace, root, "near", farFile, reg))
	if v.Old == nil || v.Old.Ino != near.Ino || v.Old.Attr == nil || v.Old.Attr.Nlink != 1 {
		f.Errorf("vote over a near file = %+v, want 1 link", v.Old)
	}
	f.nlink(near.Ino, 1)
	d := f.mkdir(root, "d").Ino
	if v := f.done(onName(metadata.EditReplace, root, "d", farDir, dir)); v.Old == nil || v.Old.Ino != d || v.Old.Attr == nil {
		f.Errorf("vote over a near directory = %+v", v)
	}
	f.far(root, "d", farDir, dir)
	f.nlink(root, 3)
	_, err := f.s.Getattr(ctx, d)
	f.want(err, syscall.ENOENT, "Getattr of the replaced directory")
}

func testEditReplaceRefuses(f *partner) {
	f.create(root, "f")
	full := f.mkdir(root, "full").Ino
	f.create(full, "x")
	f.refused(syscall.ENOTDIR, onName(metadata.EditReplace, root, "f", farDir, dir))
	f.refused(syscall.EISDIR, onName(metadata.EditReplace, root, "full", farFile, reg))
	f.refused(syscall.ENOTEMPTY, onName(metadata.EditReplace, root, "full", farDir, dir))
	from := onName(metadata.EditReplace, root, "empty", farDir, dir)
	from.ToDir = f.mkdir(root, "empty").Ino
	f.refused(syscall.ENOTEMPTY, from)
	f.names(root, "full", full)
	f.nlink(root, 4)
	f.create(full, "y") // a refusal leaves no locks
}

func testEditSwap(f *partner) {
	f.refused(syscall.ENOENT, onName(metadata.EditSwap, root, "none", farFile, reg))
	file, d := f.create(root, "f"), f.mkdir(root, "d").Ino
	e := onName(metadata.EditSwap, root, "f", farDir, dir)
	e.ToDir, e.ToName = farDir+1, "g"
	v := f.done(e)
	if v.Old == nil || v.Old.Ino != file.Ino || v.Old.Attr == nil || v.Old.Attr.Nlink != 1 || v.Old.Attr.Ctime < file.Ctime {
		f.Errorf("vote = %+v", v.Old)
	}
	f.far(root, "f", farDir, dir)
	f.nlink(file.Ino, 1)
	f.nlink(root, 4)
	e = onName(metadata.EditSwap, root, "d", farFile, reg)
	e.ToDir, e.ToName = farDir, "g"
	if v := f.done(e); v.Old == nil || v.Old.Ino != d {
		f.Errorf("vote = %+v", v.Old)
	}
	f.nlink(root, 3)
	f.nlink(d, 2)
}

func testEditMake(f *partner) {
	e := metadata.Edit{Kind: metadata.EditMake, ToDir: farDir, ToName: "d", New: &metadata.New{Mode: dir | 0o2750, UID: 3, GID: 4, Layout: metadata.Layout{Width: 2}}}
	tx, v := f.prepare(e)
	if v.Attr == nil || v.Attr.Mode != dir|0o2750 || v.Attr.Nlink != 2 || v.Attr.UID != 3 || v.Attr.GID != 4 || v.Attr.Layout.Width != 2 || v.Attr.Ino.Home() != 0 {
		f.Fatalf("vote = %+v", v.Attr)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err := f.s.Getattr(short, v.Attr.Ino)
	f.want(err, syscall.ETIMEDOUT, "Getattr of a directory that is only promised")
	f.commit(tx)
	f.nlink(v.Attr.Ino, 2)
	f.create(v.Attr.Ino, "f")
	tx, v = f.prepare(e)
	f.abort(tx)
	_, err = f.s.Getattr(ctx, v.Attr.Ino)
	f.want(err, syscall.ENOENT, "Getattr of a directory whose making was aborted")
	f.nlink(root, 2)
	e.New = &metadata.New{Mode: reg | 0o700}
	f.refused(syscall.EINVAL, e)
	e.New = nil
	f.refused(syscall.EINVAL, e)
}

// testDropWhileMade: removing a directory waits for the transaction that creates it.
func testDropWhileMade(f *partner) {
	made, v := f.prepare(metadata.Edit{Kind: metadata.EditMake, ToDir: farDir, ToName: "d", New: &metadata.New{Mode: 0o700}})
	for _, kind := range []metadata.EditKind{metadata.EditDrop, metadata.EditMoved} {
		f.refused(syscall.EAGAIN, onInode(kind, v.Attr.Ino))
	}
	f.commit(made)
	f.done(onInode(metadata.EditDrop, v.Attr.Ino))
	f.refused(syscall.ENOENT, onInode(metadata.EditDrop, v.Attr.Ino))
}

func testEditDrop(f *partner) {
	d := f.done(metadata.Edit{Kind: metadata.EditMake, ToDir: farDir, ToName: "d", New: &metadata.New{Mode: 0o700}}).Attr.Ino
	f.create(d, "f")
	f.refused(syscall.ENOTEMPTY, onInode(metadata.EditDrop, d))
	f.unlink(d, "f")
	f.done(onInode(metadata.EditDrop, d))
	f.refused(syscall.ENOENT, onInode(metadata.EditDrop, d))
	_, err := f.s.Create(ctx, d, "late", metadata.New{Mode: reg | 0o600})
	f.want(err, syscall.ENOENT, "Create in a dropped directory")
	f.refused(syscall.ENOENT, onName(metadata.EditEnter, d, "late", farFile, reg))
	f.refused(syscall.ENOTDIR, onInode(metadata.EditDrop, f.create(root, "f").Ino))
	f.refused(syscall.EBUSY, onInode(metadata.EditDrop, root))
}

func testEditLinks(f *partner) {
	a := f.create(root, "f")
	for _, tt := range []struct {
		kind  metadata.EditKind
		nlink uint32
		want  error
	}{
		{metadata.EditLink, 2, nil}, {metadata.EditUnlink, 1, nil}, {metadata.EditUnlink, 0, nil},
		{metadata.EditUnlink, 0, syscall.ENOENT}, {metadata.EditLink, 0, syscall.ENOENT},
	} {
		if tt.want != nil {
			f.refused(tt.want, onInode(tt.kind, a.Ino))
			continue
		}
		tx, v := f.prepare(onInode(tt.kind, a.Ino))
		if v.Attr == nil || v.Attr.Nlink != tt.nlink {
			f.Errorf("vote on kind %d = %+v, want %d links", tt.kind, v.Attr, tt.nlink)
		}
		f.commit(tx)
		f.nlink(a.Ino, tt.nlink)
	}
	f.want(f.s.Reap(ctx, a.Ino), nil, "Reap")
	f.refused(syscall.ENOENT, onInode(metadata.EditLink, a.Ino))
	f.refused(syscall.EPERM, onInode(metadata.EditLink, root))
}

func testEditMoved(f *partner) {
	a, d := f.create(root, "f"), f.mkdir(root, "d")
	f.done(metadata.Edit{Kind: metadata.EditMoved, Ino: a.Ino, ToDir: farDir, ToName: "x"},
		metadata.Edit{Kind: metadata.EditMoved, Ino: d.Ino, ToDir: farDir, ToName: "y"})
	for _, was := range []metadata.Attr{a, d} {
		now := f.attr(was.Ino)
		if now.Ctime < was.Ctime || now.Mtime != was.Mtime || now.Nlink != was.Nlink {
			f.Errorf("inode that moved = %+v, was %+v", now, was)
		}
	}
}

func testEditRefuses(f *partner) {
	file := f.create(root, "f").Ino
	tests := []struct {
		e    metadata.Edit
		want error
	}{
		{onName(metadata.EditEnter, root, "a/b", farFile, reg), syscall.EINVAL},
		{onName(metadata.EditEnter, root, "a", 0, reg), syscall.EINVAL},
		{onName(metadata.EditEnter, root, "a", farFile, 0), syscall.EINVAL},
		{onName(metadata.EditEnter, root, "a", metadata.SealedIno(1, 2, 3), reg), syscall.EINVAL},
		{onName(metadata.EditEnter, file, "a", farFile, reg), syscall.ENOTDIR},
		{onName(metadata.EditEnter, farDir, "a", farFile, reg), syscall.EREMOTE},
		{onInode(metadata.EditLink, farFile), syscall.ENOENT},
		{onInode(metadata.EditMoved, farDir), syscall.ENOENT},
		{metadata.Edit{Kind: 200, Ino: file}, syscall.EINVAL},
		{metadata.Edit{}, syscall.EINVAL},
	}
	for _, tt := range tests {
		f.refused(tt.want, tt.e)
	}
	f.refused(syscall.EINVAL)
	f.refused(syscall.EINVAL, make([]metadata.Edit, metadata.MaxEdits+1)...)
	_, err := f.p.Prepare(ctx, metadata.TxID(metadata.LiveIno(0, 5000)), []metadata.Edit{onInode(metadata.EditLink, file)})
	f.want(err, syscall.EINVAL, "Prepare of a transaction of this home itself")
}

func testTxEnds(f *partner) {
	tx, _ := f.prepare(onName(metadata.EditEnter, root, "f", farFile, reg))
	_, err := f.p.Prepare(ctx, tx, []metadata.Edit{onName(metadata.EditEnter, root, "g", farFile, reg)})
	f.want(err, syscall.EALREADY, "second Prepare")
	f.commit(tx)
	f.commit(tx)
	f.abort(tx)
	f.far(root, "f", farFile, reg)
	f.names(root, "g", 0)
	tx, _ = f.prepare(onName(metadata.EditLeave, root, "f", farFile, 0))
	f.abort(tx)
	f.abort(tx)
	f.commit(tx)
	f.far(root, "f", farFile, reg)
	f.commit(f.newTx())
	f.abort(f.newTx())
}

func testTxBusy(f *partner) {
	a, d := f.create(root, "f"), f.mkdir(root, "d").Ino
	tx, _ := f.prepare(onName(metadata.EditReplace, root, "f", farFile, reg), onName(metadata.EditEnter, d, "x", farFile, reg))
	f.refused(syscall.EAGAIN, onName(metadata.EditKeep, root, "f", a.Ino, 0))
	f.refused(syscall.EAGAIN, onInode(metadata.EditLink, a.Ino))
	f.refused(syscall.EAGAIN, onInode(metadata.EditDrop, d))
	f.refused(syscall.EAGAIN, metadata.Edit{Kind: metadata.EditMoved, Ino: d, ToDir: root, ToName: "e"})
	f.abort(tx)
	tx, _ = f.prepare(onInode(metadata.EditDrop, d))
	f.refused(syscall.EAGAIN, onName(metadata.EditEnter, d, "x", farFile, reg))
	f.commit(tx)
	f.refused(syscall.ENOENT, onName(metadata.EditEnter, d, "x", farFile, reg))
}

// testTxTogether: transactions on different names run concurrently, also in one directory, whose
// links add up.
func testTxTogether(f *partner) {
	tx1, _ := f.prepare(onName(metadata.EditEnter, root, "a", farDir, dir))
	tx2, _ := f.prepare(onName(metadata.EditEnter, root, "b", farDir+1, dir))
	f.mkdir(root, "c")
	f.nlink(root, 3)
	f.commit(tx2)
	tx3, _ := f.prepare(onName(metadata.EditLeave, root, "b", farDir+1, 0))
	f.commit(tx1)
	f.nlink(root, 5)
	f.commit(tx3)
	f.nlink(root, 4)
	if got := f.listNames(root); !slices.Equal(got, []string{"a", "c"}) {
		f.Errorf("ReadDir = %q", got)
	}
}

// testTxWaits: operations that find a lock taken wait for the end of the transaction, and see its result; other
// operations continue.
func testTxWaits(f *partner) {
	a, d := f.create(root, "f"), f.mkdir(root, "d").Ino
	f.create(root, "other")
	tx, _ := f.prepare(onName(metadata.EditReplace, root, "f", farFile, reg), onName(metadata.EditEnter, d, "x", farFile+1, reg))
	f.create(root, "else")
	f.unlink(root, "other")
	f.create(d, "else")
	f.attr(root)
	waiting := []func() error{
		func() error {
			e, err := f.s.Lookup(ctx, root, "f")
			if err == nil && e.Ino != farFile {
				return errors.New("lookup saw the old entry")
			}
			return err
		},
		func() error {
			got, err := f.s.Getattr(ctx, a.Ino)
			if err == nil && got.Nlink != 0 {
				return errors.New("getattr saw the old links")
			}
			return err
		},
		func() error {
			es, err := f.s.ReadDir(ctx, d, "", 10)
			if err == nil && len(es) != 2 {
				return errors.New("readdir did not see the new entry")
			}
			return err
		},
		func() error {
			_, err := f.s.Create(ctx, d, "x", metadata.New{Mode: reg})
			return expected(err, syscall.EEXIST)
		},
		func() error { return expected(f.s.Rmdir(ctx, root, "d"), syscall.ENOTEMPTY) },
		func() error {
			_, err := f.s.Link(ctx, a.Ino, d, "link")
			return expected(err, syscall.ENOENT)
		},
	}
	done := make(chan error, len(waiting))
	for _, fn := range waiting {
		go func() { done <- fn() }()
	}
	select {
	case err := <-done:
		f.Errorf("an operation did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	f.commit(tx)
	for range waiting {
		if err := <-done; err != nil {
			f.Error(err)
		}
	}
}

// expected returns nil if err is want.
func expected(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return errors.Join(errors.New("not the refusal that was due"), err)
}

// testTxGivesUpWaiting: a wait ends with its context.
func testTxGivesUpWaiting(f *partner) {
	tx, _ := f.prepare(onName(metadata.EditEnter, root, "f", farFile, reg))
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err := f.s.Lookup(over, root, "f")
	f.want(err, syscall.EINTR, "Lookup with a context that has ended")
	_, err = f.s.Create(over, root, "f", metadata.New{Mode: reg})
	f.want(err, syscall.EINTR, "Create with a context that has ended")
	_, err = f.s.ReadDir(over, root, "", 10)
	f.want(err, syscall.EINTR, "ReadDir with a context that has ended")
	f.abort(tx)
	f.names(root, "f", 0)
}
