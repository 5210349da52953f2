package daemon

import (
	"errors"
	"fmt"
	"net"
)

// listen binds the first address that is free.
func listen(addrs []string) (net.Listener, error) {
	var errs []error
	for _, a := range addrs {
		_, port, err := net.SplitHostPort(a)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", a, err)
		}
		l, err := net.Listen("tcp", net.JoinHostPort("", port))
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no port of this job is free on this node: %w: widen ports= in the site's configuration", errors.Join(errs...))
}
