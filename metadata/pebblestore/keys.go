package pebblestore

import (
	"encoding/binary"

	"github.com/bivouacfs/bivouac/metadata"
)

// The first byte of every key. See the package comment.
const (
	prefixMeta       = 0x01
	prefixInode      = 0x02
	prefixEntry      = 0x03
	prefixOrphan     = 0x04
	prefixIntent     = 0x05
	prefixDecision   = 0x06
	prefixShard      = 0x07
	prefixShardInode = 0x08
	prefixTold       = 0x09
	prefixXattr      = 0x0a
	prefixTable      = 0x10
)

const schemaVersion = 1

var (
	keyVersion = []byte{prefixMeta, 'v'}
	keySelf    = []byte{prefixMeta, 's'}
	keyCounter = []byte{prefixMeta, 'c'}
	keyPartner = []byte{prefixMeta, 'p'}
	keyStream  = []byte{prefixMeta, 'm'}
)

func inoKey(prefix byte, ino metadata.Ino) []byte {
	k := make([]byte, 0, 9)
	return binary.BigEndian.AppendUint64(append(k, prefix), uint64(ino))
}

func inodeKey(ino metadata.Ino) []byte  { return inoKey(prefixInode, ino) }
func shardKey(dir metadata.Ino) []byte  { return inoKey(prefixShard, dir) }
func orphanKey(ino metadata.Ino) []byte { return inoKey(prefixOrphan, ino) }

func intentKey(tx metadata.TxID) []byte   { return inoKey(prefixIntent, metadata.Ino(tx)) }
func decisionKey(tx metadata.TxID) []byte { return inoKey(prefixDecision, metadata.Ino(tx)) }

const entryNameAt = 9 // where the name begins in an entry's key

func entryKey(dir metadata.Ino, name string) []byte {
	k := make([]byte, 0, entryNameAt+len(name))
	k = binary.BigEndian.AppendUint64(append(k, prefixEntry), uint64(dir))
	return append(k, name...)
}

// entriesEnd returns the first key after the entries of dir.
func entriesEnd(dir metadata.Ino) []byte {
	if dir+1 == 0 {
		return []byte{prefixEntry + 1}
	}
	return inoKey(prefixEntry, dir+1)
}

// dirKey returns the key of a directory's inode, or of the shard's copy if the directory has another home.
func (s *core) dirKey(dir metadata.Ino) []byte {
	if s.here(dir) {
		return inodeKey(dir)
	}
	return inoKey(prefixShardInode, dir)
}

func shardReportKey(dir metadata.Ino, by metadata.NodeID) []byte {
	return binary.BigEndian.AppendUint16(inoKey(prefixTold, dir), uint16(by))
}

func shardReportEnd(dir metadata.Ino) []byte { return inoKey(prefixTold, dir+1) }

const xattrNameAt = 9 // where the name begins in an attribute's key

func xattrKey(ino metadata.Ino, name string) []byte {
	k := make([]byte, 0, xattrNameAt+len(name))
	k = binary.BigEndian.AppendUint64(append(k, prefixXattr), uint64(ino))
	return append(k, name...)
}

// xattrsEnd returns the first key after the attributes of the live inode ino.
func xattrsEnd(ino metadata.Ino) []byte { return inoKey(prefixXattr, ino+1) }

func tableKey(ds metadata.DatasetID, k []byte) []byte {
	key := make([]byte, 0, 3+len(k))
	key = binary.BigEndian.AppendUint16(append(key, prefixTable), uint16(ds))
	return append(key, k...)
}

func tableEnd(ds metadata.DatasetID) []byte {
	if ds+1 == 0 {
		return []byte{prefixTable + 1}
	}
	return tableKey(ds+1, nil)
}
