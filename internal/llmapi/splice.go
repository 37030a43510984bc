package llmapi

import (
	"cmp"
	"encoding/json"
	"slices"
)

// UsageMissing reports whether the answer will be a stream that tells its usage
// only on request, and the client did not request it.
func (f *Facts) UsageMissing() bool {
	return f.Stream && !f.IncludeUsage && f.Route.usageOnRequest()
}

// Splice returns the body for the engine: with the model's name replaced, unless
// model is empty, and with a request for usage if askUsage is set and
// UsageMissing. All other bytes stay as they are. The body must be the one that
// was parsed; when nothing changes it is returned itself.
func (f *Facts) Splice(body []byte, model string, askUsage bool) []byte {
	l := &f.layout
	var edits []edit
	var members string // for the root object
	if model != "" && model != f.Model {
		// A string always encodes.
		quoted, _ := json.Marshal(model)
		if l.model.to > 0 {
			edits = append(edits, edit{l.model, string(quoted)})
		} else {
			members = `"model":` + string(quoted)
		}
	}
	if askUsage && f.UsageMissing() {
		const wish = `"include_usage":true`
		switch {
		case l.includeUsage.to > 0:
			edits = append(edits, edit{l.includeUsage, "true"})
		case l.options.open > 0:
			edits = append(edits, l.options.insert(wish))
		case l.nullOptions.to > 0:
			edits = append(edits, edit{l.nullOptions, "{" + wish + "}"})
		default:
			if members != "" {
				members += ","
			}
			members += `"stream_options":{` + wish + "}"
		}
	}
	if members != "" {
		edits = append(edits, l.root.insert(members))
	}
	if len(edits) == 0 {
		return body
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.at.from, b.at.from) })
	size := len(body)
	for _, e := range edits {
		size += len(e.text)
	}
	out := make([]byte, 0, size)
	from := 0
	for _, e := range edits {
		out = append(out, body[from:e.at.from]...)
		out = append(out, e.text...)
		from = e.at.to
	}
	return append(out, body[from:]...)
}

// edit puts text in the place of a span.
type edit struct {
	at   span
	text string
}

// insert is the edit that puts members first into the object.
func (o object) insert(members string) edit {
	if !o.empty {
		members += ","
	}
	return edit{span{o.open, o.open}, members}
}
