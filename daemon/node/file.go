package node

import "os"

// ReplaceFile writes a file of this user, which appears atomically. Only one goroutine at a time may write it.
func ReplaceFile(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
