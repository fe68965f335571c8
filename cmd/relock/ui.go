package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/go-relock/relock/ui"
)

func (a *app) uiCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ui", Short: "Show all locks on a page for the browser", Args: cobra.NoArgs,
		Long: `Show who has which lock, and who waits for whom, on a page for the browser, until Ctrl-C. The address of
the page is printed. The page has no login: by default, only programs on this machine reach it.`,
	}
	listen := cmd.Flags().String("listen", "127.0.0.1:8640", "`ADDRESS` of the page; port 0 is any free one")
	actions := cmd.Flags().Bool("actions", false, "let the page ask for locks, and take them from their holders;\na line on stderr for each")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.reading(cmd.Context(), func(_ context.Context, r *reader) error {
			page := &ui.Handler{Locks: r.client}
			if rdb := r.client.Redis(); rdb != nil {
				page.History = &ui.History{Redis: rdb, Key: a.conn.prefix + "history"}
			}
			if *actions {
				page.Actions = slog.New(slog.NewTextHandler(a.stderr, nil))
			}
			return a.serve(page, *listen)
		})
	}
	return cmd
}

// serve serves the page until a signal, which ends the program at once, as a page leaves nothing.
func (a *app) serve(page http.Handler, address string) error {
	l, err := net.Listen("tcp", address)
	if err == nil {
		if l.Addr().(*net.TCPAddr).IP.IsLoopback() {
			page = ui.OnLoopback(page)
		}
		ending := make(chan os.Signal, 1)
		heed(ending, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		go func() { <-ending; os.Exit(0) }()
		fmt.Fprintf(a.stdout, "http://%s/\n", l.Addr())
		_ = a.stdout.Flush()
		err = http.Serve(l, page)
	}
	return &exitError{code: codeInternal, err: err}
}
