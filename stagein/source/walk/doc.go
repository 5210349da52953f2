// Package walk examines paths: it detects the kind of a source (Detect), expands patterns (Glob), reads lists of paths
// (ReadList), and walks the tree below a directory (Config.Run).
//
// A walk runs several workers on this node, and sends batches of names to other nodes (Remote). This node itself stats
// every name that another node does not answer, so it alone decides which errors a source has and which names are hard
// links of one file (device numbers differ between nodes).
//
// Symbolic links are items and are never followed. All other types than file, directory and link are refused by name.
//
// Lock order: walker.mu is a leaf; it is held while Skip is called.
//
// The package reads no file contents except the first block of an archive and a list.
package walk
