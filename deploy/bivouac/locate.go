package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func locateCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "locate PATH...",
		Short: "Print which nodes hold the data of files",
		Long: `Locate prints a line for each PATH below a mount of Bivouac: the hosts that hold
its data, separated by commas, then a tab and the path. It reads the extended
attribute user.bivouac.node, as "getfattr -n user.bivouac.node PATH" does.`,
		Example: "  bivouac locate $BIVOUAC_DATA/imagenet/n01440764/*",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, paths []string) error {
			var errs []error
			for _, p := range paths {
				hosts, err := hostsOf(p)
				if err == nil {
					_, err = fmt.Fprintf(c.OutOrStdout(), "%s\t%s\n", hosts, p)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
}

// hostsOf asks the mount which hosts have a path.
func hostsOf(path string) (string, error) {
	for b := make([]byte, 4096); ; b = make([]byte, 2*len(b)) {
		n, err := unix.Getxattr(path, "user.bivouac.node", b)
		switch {
		case errors.Is(err, syscall.ERANGE) && len(b) < 1<<16:
			continue
		case errors.Is(err, syscall.ENODATA), errors.Is(err, syscall.ENOTSUP):
			return "", fmt.Errorf("%s is not below a mount of Bivouac: give paths below $BIVOUAC, or below D/nodeN of a job started by bivouac up", path)
		case err != nil:
			return "", fmt.Errorf("%s: %w", path, err)
		}
		return string(b[:n]), nil
	}
}
