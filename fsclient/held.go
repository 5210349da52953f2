package fsclient

import "github.com/bivouacfs/bivouac/metadata"

// Holds reports whether the live file ino is open on this node: then its data
// is wanted, also if no name of it is left.
func (c *Client) Holds(ino metadata.Ino) bool { return c.files.get(ino) != nil }
