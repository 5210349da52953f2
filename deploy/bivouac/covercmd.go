package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

func coverCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "cover MOUNT NAME UID GID",
		Short:  "Mount a cover over a dataset (started by the daemon or its keeper)",
		Hidden: true,
		Args:   cobra.ExactArgs(4),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := coverOf(args)
			if err != nil {
				return err
			}
			return c.Help()
		},
	}
}

func viewCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "view MOUNT NAME UID GID STORE...",
		Short:  "Make a kernel view of a dataset (started by the daemon or its keeper)",
		Hidden: true,
		Args:   cobra.MinimumNArgs(5),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := coverOf(args)
			if err != nil {
				return err
			}
			return mounts.View{Cover: c, Stores: args[4:]}.Help()
		},
	}
}

func coverOf(args []string) (mounts.Cover, error) {
	c := mounts.Cover{Base: args[0], Name: args[1]}
	for i, id := range []*uint32{&c.UID, &c.GID} {
		n, err := strconv.ParseUint(args[2+i], 10, 32)
		if err != nil {
			return c, err
		}
		*id = uint32(n)
	}
	return c, nil
}
