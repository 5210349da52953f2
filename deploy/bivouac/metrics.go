package main

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/exporter"
	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func metricsCmd() *cobra.Command {
	var cfg exporter.Config
	var config, listen string
	c := &cobra.Command{
		Use:   "metrics --token-file FILE",
		Short: "Serve the metrics of all jobs on this node to Prometheus, over TCP",
		Long: `Metrics answers GET /metrics with the metrics of all jobs on this node, in the
format OpenMetrics. A request needs the header "Authorization: Bearer TOKEN", with
the token in FILE. Only root may be able to read FILE. It is read at each request, so
that the token can be replaced at any time.

The package has a systemd unit for it, bivouac-metrics. Sites with node_exporter can
set metrics_textfile in bivouac.yaml instead: no port is opened then.`,
		Example: "  (umask 077; openssl rand -hex 32 > /etc/bivouac/metrics.token)\n  bivouac metrics --token-file /etc/bivouac/metrics.token",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("bivouac metrics needs root, because it asks the keepers of all users' jobs")
			}
			site, err := pitch.LoadSite(config)
			if err != nil {
				return err
			}
			if cfg.Listener, err = net.Listen("tcp", listen); err != nil {
				return err
			}
			l := logrus.StandardLogger()
			l.SetFormatter(pitch.LogFormatter(site.LogFormat))
			cfg.Log = l.WithField("part", "metrics")
			cfg.Samples = func(ctx context.Context) ([]byte, error) { return pitch.Metrics(ctx, site) }
			cfg.Log.WithField("address", cfg.Listener.Addr().String()).Info("serving the metrics of this node")
			return exporter.Serve(c.Context(), cfg)
		},
	}
	c.Flags().StringVar(&listen, "listen", ":18499", "address and port to listen on")
	c.Flags().StringVar(&cfg.TokenFile, "token-file", "", "file with the token, one word of at least 16 characters (required)")
	c.Flags().StringVar(&cfg.TLSCert, "tls-cert", "", "certificate for HTTPS, in PEM (default: HTTP, which sends the token unencrypted)")
	c.Flags().StringVar(&cfg.TLSKey, "tls-key", "", "private key of the certificate")
	c.Flags().StringVar(&config, "config", pitch.SitePath, "path of the site configuration")
	c.MarkFlagsRequiredTogether("tls-cert", "tls-key")
	must(c.MarkFlagRequired("token-file"))
	return c
}
