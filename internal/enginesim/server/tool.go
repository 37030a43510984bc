package server

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
)

// tool is a function that the client offers, whatever its dialect calls it.
type tool struct {
	name        string
	description any // a string, or nil when the client gave none
	parameters  json.RawMessage
}

// toolCall is a call in an answer, or one in the history.
type toolCall struct {
	name      string
	arguments string // JSON
}

// template is the tool as the chat template prints it.
func (t tool) template() object {
	parameters := any(nil)
	if len(t.parameters) > 0 {
		if v, err := parseOrdered(t.parameters); err == nil {
			parameters = v
		}
	}
	return object{{"type", "function"}, {"function", object{
		{"name", t.name}, {"description", t.description}, {"parameters", parameters},
	}}}
}

// shells are the names under which agent clients offer a command line. Running a
// harmless command is the call that every one of them accepts without a question.
var shells = []string{
	"bash", "exec_command", "shell", "shell_command", "local_shell", "run_shell_command", "run_commands", "run_command",
	"execute_command", "terminal",
}

// chooseCall answers a tool marker with a call of one of the offered tools; false when
// none fits.
func chooseCall(w wishes, offered []tool) (*toolCall, bool) {
	if !w.tool || len(offered) == 0 {
		return nil, false
	}
	chosen := -1
	if w.toolName != "" {
		chosen = slices.IndexFunc(offered, func(t tool) bool { return t.name == w.toolName })
		if chosen < 0 {
			chosen = slices.IndexFunc(offered, func(t tool) bool { return strings.EqualFold(t.name, w.toolName) })
		}
	} else {
		for _, shell := range shells {
			chosen = slices.IndexFunc(offered, func(t tool) bool { return strings.EqualFold(t.name, shell) })
			if chosen >= 0 {
				break
			}
		}
		if chosen < 0 {
			chosen = 0
		}
	}
	if chosen < 0 {
		return nil, false
	}
	t := offered[chosen]
	arguments := string(w.arguments)
	if w.arguments == nil {
		var s schema
		arguments = "{}"
		if json.Unmarshal(t.parameters, &s) == nil && s.kind() == "object" {
			arguments = string(appendJSON(nil, new(example).of(s, ""), spaced))
		}
	}
	// Spelled as the chat template will print the call when it comes back in the
	// history: then the next prompt extends this answer token by token.
	return &toolCall{name: t.name, arguments: pythonJSON([]byte(arguments))}, true
}

// schema is the part of JSON Schema that is needed to make up a valid value.
type schema struct {
	Type       json.RawMessage   `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	Enum       []json.RawMessage `json:"enum"`
	Const      json.RawMessage   `json:"const"`
	Minimum    *float64          `json:"minimum"`
	MinItems   int               `json:"minItems"`
	AnyOf      []schema          `json:"anyOf"`
	OneOf      []schema          `json:"oneOf"`
}

func (s schema) kind() string {
	var one string
	if json.Unmarshal(s.Type, &one) == nil {
		return one
	}
	var many []string
	if json.Unmarshal(s.Type, &many) == nil && len(many) > 0 {
		return many[0]
	}
	if s.Properties != nil {
		return "object"
	}
	return "string"
}

// example makes up the smallest value that a schema allows. It stops to grow after some
// parts, since a schema can ask for more than anyone wants to send.
type example struct{ parts int }

const maxParts = 1000

// of returns a value for a field called name.
func (e *example) of(s schema, name string) any {
	if e.parts++; e.parts > maxParts {
		return nil
	}
	switch {
	case len(s.Const) > 0:
		return s.Const
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.AnyOf) > 0:
		return e.of(s.AnyOf[0], name)
	case len(s.OneOf) > 0:
		return e.of(s.OneOf[0], name)
	}
	switch s.kind() {
	case "object":
		v := object{}
		for _, key := range s.Required {
			if e.parts < maxParts {
				v = append(v, field{key, e.of(s.Properties[key], key)})
			}
		}
		return v
	case "array":
		return e.array(s, name)
	case "integer", "number":
		if s.Minimum != nil && *s.Minimum > 1 {
			return json.Number(strconv.FormatFloat(math.Ceil(*s.Minimum), 'f', -1, 64))
		}
		return 1
	case "boolean":
		return false
	case "null":
		return nil
	}
	if isCommand(name) {
		return "echo hi"
	}
	return "hi"
}

func (e *example) array(s schema, name string) list {
	v := list{}
	if s.Items == nil {
		return v
	}
	if isCommand(name) {
		if s.Items.kind() == "string" && !strings.HasSuffix(name, "s") {
			return list{"echo", "hi"} // one command as its words
		}
		return append(v, e.of(*s.Items, strings.TrimSuffix(name, "s")))
	}
	for len(v) < s.MinItems && e.parts < maxParts {
		v = append(v, e.of(*s.Items, name))
	}
	return v
}

func isCommand(name string) bool {
	return slices.Contains([]string{"command", "commands", "cmd"}, name)
}
