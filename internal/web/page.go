package web

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"
)

func parsePages() (*template.Template, error) {
	return template.New("pages").ParseFS(files, "templates/*.html")
}

// page is what every page has.
type page struct {
	Title string
	Nav   []navLink
	JSON  string // the page's twin in the API
	// Refresh is after how many milliseconds the script asks again; 0 for a page
	// that does not change.
	Refresh  int
	Now      time.Time
	Version  string
	Started  time.Time
	Warnings []string
	LoggedIn bool // so that one can log out
}

// navLink leads to a part of the console.
type navLink struct {
	Path, Label string
	Current     string // value of aria-current, empty elsewhere
}

// The parts of the console.
const (
	navOverview      = "Overview"
	navModels        = "Models"
	navConversations = "Conversations"
	navStats         = "Stats"
	navBenchmarks    = "Benchmarks"
	navSettings      = "Settings"
)

// often is how often pages ask again.
const often = 1000

func (h *Handler) page(r *http.Request, nav, title, twin string) page {
	p := page{
		Title: title, JSON: twin, Refresh: often,
		Now: h.o.Now().UTC(), Version: h.version(), Started: h.started.UTC(), Warnings: h.o.Warnings(),
		LoggedIn: h.o.Logins.Required(),
	}
	for _, l := range []navLink{
		{"/", navOverview, ""}, {"/models", navModels, ""}, {"/conversations", navConversations, ""},
		{"/stats", navStats, ""}, {"/benchmarks", navBenchmarks, ""}, {"/settings", navSettings, ""},
	} {
		if l.Label == nav {
			l.Current = "true"
			if r.URL.Path == l.Path {
				l.Current = "page"
			}
		}
		p.Nav = append(p.Nav, l)
	}
	return p
}

// Stamp is a time for the datetime attribute.
func (p page) Stamp(t time.Time) string { return rfc3339(t) }

// Date is a time for people; the script turns it into the viewer's zone.
func (p page) Date(t time.Time) string { return t.UTC().Format("2 January 2006 15:04 UTC") }

// Clock is the time of a day for people.
func (p page) Clock(t time.Time) string { return t.UTC().Format("15:04:05") }

// Ago is the span from a time to now, in words.
func (p page) Ago(t time.Time) string { return span(p.Now.Sub(t)) }

func (h *Handler) pageNotFound(w http.ResponseWriter, r *http.Request) {
	h.notFound(w, r, "There is no page "+r.URL.Path+".")
}

func (h *Handler) notFound(w http.ResponseWriter, r *http.Request, say string) {
	h.sayInstead(w, r, http.StatusNotFound, "Not found", say)
}

// badRequest answers a page's wrong parameters.
func (h *Handler) badRequest(w http.ResponseWriter, r *http.Request, err error) {
	h.sayInstead(w, r, http.StatusBadRequest, "That does not work", sentenceOf(err.Error()))
}

// sayInstead is a page with nothing but a sentence.
func (h *Handler) sayInstead(w http.ResponseWriter, r *http.Request, status int, title, say string) {
	p := h.page(r, "", title, "")
	p.Refresh = 0
	h.render(w, r, status, "say.html", struct {
		page
		Say string
	}{p, say})
}

// sentenceOf makes an error's text a sentence.
func sentenceOf(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

func noSuchModel(name string, known []string) string {
	return fmt.Sprintf("There is no model %q. Known: %s.", name, cmp.Or(strings.Join(known, ", "), "none yet"))
}

// render writes a page whole or not at all.
func (h *Handler) render(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var b bytes.Buffer
	if err := h.pages.ExecuteTemplate(&b, name, data); err != nil {
		h.o.Log.ErrorContext(r.Context(), "render a page", "page", name, "error", err)
		writeText(w, http.StatusInternalServerError, "the page could not be made; the log says why\n")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}
