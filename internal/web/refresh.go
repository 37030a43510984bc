package web

import (
	"bytes"
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// refreshHeader marks the requests with which the script asks for a page again.
const refreshHeader = "X-Warden-Refresh"

// refreshes makes a page once for all consoles that have it open and ask for it
// again within a moment. Who opens a page has it made anew, and after a change
// through this listener so has everyone.
type refreshes struct {
	changes atomic.Int64
	pages   shared[refreshed, *madePage]
}

// refreshed names a page as of a number of changes.
type refreshed struct {
	address string
	changes int64
}

// refreshesFor is short beside the second after which a page asks again.
const refreshesFor = 500 * time.Millisecond

// of answers those requests; next makes the pages.
func (s *refreshes) of(next http.Handler) http.Handler {
	s.pages.lasts = refreshesFor
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			defer s.changes.Add(1)
			next.ServeHTTP(w, r)
		case r.Header.Get(refreshHeader) == "" || r.Method == http.MethodHead:
			next.ServeHTTP(w, r)
		default:
			page, _ := s.pages.get(refreshed{r.URL.RequestURI(), s.changes.Load()}, func() (*madePage, error) {
				p := &madePage{header: http.Header{}, status: http.StatusOK}
				next.ServeHTTP(p, r.WithContext(context.WithoutCancel(r.Context()))) // others may wait for it
				return p, nil
			})
			for name, values := range page.header {
				w.Header()[name] = values
			}
			w.WriteHeader(page.status)
			_, _ = w.Write(page.body.Bytes())
		}
	})
}

// madePage is an answer that is kept. It is a ResponseWriter until it is made.
type madePage struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (p *madePage) Header() http.Header         { return p.header }
func (p *madePage) WriteHeader(status int)      { p.status = status }
func (p *madePage) Write(b []byte) (int, error) { return p.body.Write(b) }
