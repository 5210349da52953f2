// Package jobtest stages a source with n nodes, all in this process: scan, then fill or single pass, with everything that
// crosses the wire through JSON. It reassembles the dataset from the nodes' objects, and fails if the records, the
// objects and the checksums do not agree. The tests of scan, ingest and fill share it.
package jobtest
