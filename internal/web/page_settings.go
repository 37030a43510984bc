package web

import (
	"net/http"
	"time"
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
	// Commit and Go are what the program was built from and with.
	Commit, Go string
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
	body := struct {
		Version string   `json:"version"`
		Commit  text     `json:"commit"`
		Go      text     `json:"go"`
		Path    text     `json:"path"`
		Loaded  stamp    `json:"loaded"`
		Failed  text     `json:"reload_error"`
		Waiting []string `json:"waiting_for_restart"`
		Keeps   []string `json:"keeps"`
		YAML    text     `json:"yaml"`
	}{h.version(), text(s.Commit), text(s.Go), text(s.Path), stamp(s.Loaded), text(s.Failed), append([]string{}, s.Waiting...), append([]string{}, s.Keeps...), text(s.YAML)}
	writeJSON(w, body)
}
