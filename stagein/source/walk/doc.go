// Package walk finds out what lies at a path: the kind of a source (Detect), the paths that a pattern stands for (Glob),
// the paths that a list names (ReadList), and the tree below a directory (Walk).
//
// A walk runs several workers on this node, and hands batches of names to other nodes (Remote). Whatever another node
// does not answer, this node looks at itself; so it alone decides what is wrong with a source and which names are hard
// links of one file (device numbers differ between nodes).
//
// Symbolic links are items and are never followed. Anything but a file, a directory or a link is refused by name.
//
// Lock order: walker.mu is a leaf; it is held while Skip is called.
//
// The package reads no file contents but the first block of an archive and a list.
package walk
