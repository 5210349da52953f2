package tar

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// overrides are the values that PAX and GNU extensions set for the next member.
type overrides struct {
	path, link         string // PAX
	longName, longLink string // GNU; these take precedence
	size               *int64
	mtime              *metadata.Time
	sparse             *sparsePAX // nil if not sparse
}

// paxRecords calls f for each record "LEN KEY=VALUE
// " of data.
func paxRecords(data []byte, f func(key, value string) error) error {
	for len(data) > 0 {
		digits, rest, ok := bytes.Cut(data, []byte{' '})
		n, err := strconv.ParseInt(string(digits), 10, 32)
		if !ok || err != nil || n < 5 || n > int64(len(data)) || int64(len(digits))+1 >= n {
			return fmt.Errorf("length of a PAX record: %w", syscall.EBADMSG)
		}
		record := rest[:n-int64(len(digits))-1]
		if record[len(record)-1] != '\n' {
			return fmt.Errorf("PAX record without an end: %w", syscall.EBADMSG)
		}
		key, value, ok := strings.Cut(string(record[:len(record)-1]), "=")
		if !ok || key == "" || strings.ContainsRune(key, 0) {
			return fmt.Errorf("PAX record without a key: %w", syscall.EBADMSG)
		}
		if err := f(key, value); err != nil {
			return fmt.Errorf("PAX record %q: %w", key, err)
		}
		data = data[n:]
	}
	return nil
}

// pax applies a record of an extended header. An empty value undoes an earlier one.
func (o *overrides) pax(key, value string) error {
	switch key {
	case "path", "linkpath":
		if strings.ContainsRune(value, 0) {
			return syscall.EBADMSG
		}
		if key == "path" {
			o.path = value
		} else {
			o.link = value
		}
	case "size":
		o.size = nil
		if value == "" {
			return nil
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return syscall.EBADMSG
		}
		o.size = &n
	case "mtime":
		return setTime(&o.mtime, value)
	default:
		if of, ok := strings.CutPrefix(key, "GNU.sparse."); ok {
			return o.sparsePAX(of, value)
		}
	}
	return nil
}

func setTime(to **metadata.Time, value string) error {
	*to = nil
	if value == "" {
		return nil
	}
	t, err := paxTime(value)
	if err == nil {
		*to = &t
	}
	return err
}

// global applies a record of a global header to all following members.
func (g *Parser) global(key, value string) error {
	switch {
	case key == "mtime":
		return setTime(&g.Mtime, value)
	case key == "path", key == "linkpath", key == "size", strings.HasPrefix(key, "GNU.sparse."):
		return fmt.Errorf("in a global header: %w", syscall.EINVAL)
	}
	return nil
}

// paxTime parses decimal seconds with any number of decimals.
func paxTime(s string) (metadata.Time, error) {
	whole, frac, _ := strings.Cut(s, ".")
	sec, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || strings.Trim(frac, "0123456789") != "" {
		return 0, syscall.EBADMSG
	}
	ns, _ := strconv.ParseInt((frac + "000000000")[:9], 10, 64) // digits only
	if strings.HasPrefix(whole, "-") {
		ns = -ns
	}
	return source.ClampTime(sec, ns), nil
}
