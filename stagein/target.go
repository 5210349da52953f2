package stagein

import (
	"context"
	"errors"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// Target stores staged bytes: it reaches the objects of all nodes.
type Target interface {
	// PutAll stores pieces on a node: see datapath.PiecePutter.
	PutAll(ctx context.Context, node metadata.NodeID, ps []datapath.PiecePut) (errs []error, err error)
	// Remove removes an object; it is no error if there is none.
	Remove(ctx context.Context, node metadata.NodeID, ino metadata.Ino) error
}

// PutEach stores pieces one by one with put.
func PutEach(ctx context.Context, ps []datapath.PiecePut, put func(ctx context.Context, ino metadata.Ino, p []byte, off int64) error) []error {
	errs := make([]error, len(ps))
	for i := range ps {
		off := ps[i].Off
		for _, b := range ps[i].Data {
			if errs[i] = put(ctx, ps[i].Ino, b, off); errs[i] != nil {
				break
			}
			off += int64(len(b))
		}
	}
	return errs
}

// IsFull reports whether err means that a disk is full.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
