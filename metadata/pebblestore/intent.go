package pebblestore

import (
	"encoding/binary"
	"fmt"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

const (
	intentVersion = 1
	intentGaveUp  = 1 // flag
)

// appendIntent appends the value of an intent to b.
func appendIntent(b []byte, edits []edit, late bool) []byte {
	b = append(b, intentVersion, 0)
	if late {
		b[len(b)-1] |= intentGaveUp
	}
	b = binary.AppendUvarint(b, uint64(len(edits)))
	for i := range edits {
		b = appendEdit(b, &edits[i])
	}
	return b
}

func appendEdit(b []byte, e *edit) []byte {
	b = append(b, byte(e.Kind))
	b = appendText(binary.AppendUvarint(b, uint64(e.Dir)), e.Name)
	b = binary.AppendUvarint(b, uint64(e.Ino))
	b = binary.AppendUvarint(b, uint64(e.Mode))
	b = appendText(binary.AppendUvarint(b, uint64(e.ToDir)), e.ToName)
	b = binary.AppendUvarint(b, uint64(e.old))
	b = binary.AppendVarint(b, int64(e.at))
	if e.New == nil {
		return append(b, 0)
	}
	b = append(b, 1)
	b = binary.AppendUvarint(b, uint64(e.New.Mode))
	b = binary.AppendUvarint(b, uint64(e.New.UID))
	b = binary.AppendUvarint(b, uint64(e.New.GID))
	return appendLayout(b, e.New.Layout)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// parseIntent reads the value of an intent.
func parseIntent(b []byte) (edits []edit, late bool, err error) {
	d := varint.Decoder{B: b}
	version, flags, n := d.Byte(), d.Byte(), d.Bounded(metadata.MaxEdits)
	if version != intentVersion || flags > intentGaveUp {
		return nil, false, fmt.Errorf("record of an intent: %w", syscall.EIO)
	}
	for range n {
		edits = append(edits, takeEdit(&d))
	}
	if !d.Whole() || n == 0 {
		return nil, false, fmt.Errorf("record of an intent: %w", syscall.EIO)
	}
	return edits, flags == intentGaveUp, nil
}

func takeEdit(d *varint.Decoder) edit {
	e := edit{Edit: metadata.Edit{
		Kind: metadata.EditKind(d.Byte()),
		Dir:  metadata.Ino(d.Uvarint()), Name: d.Text(),
		Ino: metadata.Ino(d.Uvarint()), Mode: d.Uint32(),
		ToDir: metadata.Ino(d.Uvarint()), ToName: d.Text(),
	}}
	e.old, e.at = metadata.Ino(d.Uvarint()), metadata.Time(d.Varint())
	switch d.Byte() {
	case 0:
	case 1:
		e.New = &metadata.New{Mode: d.Uint32(), UID: d.Uint32(), GID: d.Uint32(), Layout: takeLayout(d)}
	default:
		d.Bad = true
	}
	return e
}

// appendDecision appends the value of a decision: the participants.
func appendDecision(b []byte, others []metadata.NodeID) []byte {
	for _, id := range others {
		b = binary.BigEndian.AppendUint16(b, uint16(id))
	}
	return b
}

// parseDecision reads the value of a decision.
func parseDecision(b []byte) ([]metadata.NodeID, error) {
	if len(b) == 0 || len(b)%2 != 0 || len(b) > math.MaxUint16 {
		return nil, fmt.Errorf("record of a decision: %w", syscall.EIO)
	}
	var others []metadata.NodeID
	for ; len(b) > 0; b = b[2:] {
		others = append(others, metadata.NodeID(binary.BigEndian.Uint16(b)))
	}
	return others, nil
}
