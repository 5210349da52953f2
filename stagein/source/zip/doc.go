// Package zip reads the central directory of zip and zip64 archives, and checks local headers against it.
//
// The central directory is the truth; a local header that differs is damage. Members are stored or deflated, with
// Unix modes and symbolic links. It refuses encrypted members, members that overlap, duplicate names (of which the
// last is kept if the caller asks for that), and archives in several parts.
//
// No byte of a member is read here, and nothing is written.
package zip
