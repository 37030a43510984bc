package web

import (
	"net/http"
	"time"

	"lmwarden/internal/access"
)

// Settings is what the gateway runs with.
type Settings struct {
	// YAML is the effective configuration with secrets masked.
	YAML string
	// Path is the configuration's file, empty when flags made it.
	Path string
	// Loaded is when the configuration in force was read. Failed says why the
	// latest reload was refused, empty when it was not; Waiting are keys that wait
	// for a restart.
	Loaded  time.Time
	Failed  string
	Waiting []string
	// Keeps are sentences on what is kept, where and for how long.
	Keeps []string
	// Keys are the clients' API keys, without what could open anything.
	Keys []access.View
	// Limits are what may be taken of each model.
	Limits []ModelLimits
	// Commit and Go are what the program was built from and with.
	Commit, Go string
}

// ModelLimits are what may be taken of a model, and how many of its requests are
// open.
type ModelLimits struct {
	Model string
	access.Limits
	Open int
}

type settingsPage struct {
	page
	Settings
	Known bool
}

func (h *Handler) settingsPage(w http.ResponseWriter, r *http.Request) {
	p := settingsPage{page: h.page(r, navSettings, "Settings", "/api/settings")}
	p.Refresh = 5 * often
	p.Settings, p.Known = h.settings()
	h.render(w, r, http.StatusOK, "settings.html", p)
}

func (h *Handler) settings() (Settings, bool) {
	if h.o.Settings == nil {
		return Settings{}, false
	}
	return h.o.Settings(), true
}

// getSettings is the page's twin.
func (h *Handler) getSettings(w http.ResponseWriter, r *http.Request) {
	s, _ := h.settings()
	keys := []clientKey{}
	for _, k := range s.Keys {
		keys = append(keys, clientKey{k.Name, append([]string{}, k.Models...), limit(k.InFlight), limit(k.PerMinute), k.Batch, k.Open})
	}
	limits := []modelLimits{}
	for _, l := range s.Limits {
		limits = append(limits, modelLimits{l.Model, limit(l.InFlight), limit(l.PerMinute), l.Open})
	}
	writeJSON(w, struct {
		Version string        `json:"version"`
		Commit  text          `json:"commit"`
		Go      text          `json:"go"`
		Path    text          `json:"path"`
		Loaded  stamp         `json:"loaded"`
		Failed  text          `json:"reload_error"`
		Waiting []string      `json:"waiting_for_restart"`
		Keeps   []string      `json:"keeps"`
		Keys    []clientKey   `json:"keys"`
		Limits  []modelLimits `json:"limits"`
		YAML    text          `json:"yaml"`
	}{
		h.version(), text(s.Commit), text(s.Go), text(s.Path), stamp(s.Loaded), text(s.Failed),
		append([]string{}, s.Waiting...), append([]string{}, s.Keeps...), keys, limits, text(s.YAML),
	})
}

// clientKey is a client's API key in the API.
type clientKey struct {
	Name      string   `json:"name"`
	Models    []string `json:"models"` // none means all
	InFlight  count    `json:"in_flight_limit"`
	PerMinute count    `json:"per_minute_limit"`
	Batch     bool     `json:"batch"`
	Open      int      `json:"open"`
}

// modelLimits is ModelLimits in the API.
type modelLimits struct {
	Model     string `json:"model"`
	InFlight  count  `json:"in_flight_limit"`
	PerMinute count  `json:"per_minute_limit"`
	Open      int    `json:"open"`
}

// limit is one of a key or a model, not known (null, a dash) where there is none.
func limit(n int) count {
	if n == 0 {
		return -1
	}
	return count(n)
}

// reloadSettings reads the configuration again and answers as getSettings does.
func (h *Handler) reloadSettings(w http.ResponseWriter, r *http.Request) {
	if s, _ := h.settings(); h.o.Reload == nil || s.Path == "" {
		writeError(w, http.StatusConflict, "there is no file to read again: the configuration was made from flags")
		return
	}
	if err := h.o.Reload(r.Context()); err != nil {
		writeError(w, http.StatusConflict, "the former configuration stays in force: %s", err)
		return
	}
	h.getSettings(w, r)
}
