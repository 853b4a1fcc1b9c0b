//! Mouse and keyboard: events that the page cannot tell from a user's.

use super::{Browser, LOAD_TIMEOUT, POLL};
use crate::LabError;
use serde_json::{Value, json};
use std::time::Instant;

/// The middle of the element, or why a user cannot click there.
pub(super) const POSITION: &str = "
    element => {
        if (!element) return 'no element matches';
        element.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' });
        const { left, top, width, height } = element.getBoundingClientRect();
        if (width === 0 || height === 0) return 'it is not shown';
        const [x, y] = [left + width / 2, top + height / 2];
        const there = document.elementFromPoint(x, y);
        if (!there) return 'it is outside of the window';
        if (!element.contains(there) && !there.contains(element)) {
            return 'it is covered by ' + there.outerHTML.slice(0, 100);
        }
        if (element.disabled) return 'it is disabled';
        return [x, y];
    }";

/// The focused element: its tag, `#id`, and text or label.
const FOCUSED: &str = "
    (element => {
        if (!element || element === document.body) return '';
        const id = element.id ? '#' + element.id : '';
        const label = element.getAttribute('aria-label') ?? element.innerText ?? '';
        return (element.localName + id + ' ' + label.trim()).trim();
    })(document.activeElement)";

impl Browser {
    /// Clicks on the middle of the first element that a CSS selector matches, as soon as a user
    /// could.
    ///
    /// # Errors
    /// When there is no such element in two minutes, or it stays hidden, covered or disabled.
    pub fn click(&self, selector: &str) -> Result<(), LabError> {
        let (x, y) = self.point_at(selector, "clicking on")?;
        for kind in ["mousePressed", "mouseReleased"] {
            self.mouse(json!({
                "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1,
            }))?;
        }
        Ok(())
    }

    /// Moves the mouse to the middle of the first element that a CSS selector matches.
    ///
    /// # Errors
    /// See [`click`](Self::click).
    pub fn hover(&self, selector: &str) -> Result<(), LabError> {
        self.point_at(selector, "moving the mouse to").map(drop)
    }

    fn point_at(&self, selector: &str, doing: &str) -> Result<(f64, f64), LabError> {
        let position = format!("({POSITION})(document.querySelector({}))", json!(selector));
        let deadline = Instant::now() + LOAD_TIMEOUT;
        loop {
            let result = self.lock().evaluate(&position)?;
            let reason = match result {
                Ok(Value::String(reason)) | Err(reason) => reason,
                Ok(place) => match (place[0].as_f64(), place[1].as_f64()) {
                    (Some(x), Some(y)) => {
                        self.mouse(json!({ "type": "mouseMoved", "x": x, "y": y }))?;
                        return Ok((x, y));
                    }
                    _ => format!("its position is {place}"),
                },
            };
            if Instant::now() >= deadline {
                return Err(self.lock().error(&format!("{doing} {selector}"), reason));
            }
            std::thread::sleep(POLL);
        }
    }

    fn mouse(&self, event: Value) -> Result<(), LabError> {
        let mut devtools = self.lock();
        devtools.call("Input.dispatchMouseEvent", event).map(drop)
    }

    /// Presses and releases a key: a character, or `Tab`, `Enter`, `Space`, `Escape`, `Backspace`,
    /// `Delete`, `Home`, `End`, `PageUp`, `PageDown`, `ArrowLeft`, `ArrowUp`, `ArrowRight` or
    /// `ArrowDown`. Modifiers precede it: `Shift+Tab`, `Control+a`, `Alt+x`, `Meta+x`.
    ///
    /// # Errors
    /// When there is no such key.
    pub fn press(&self, key: &str) -> Result<(), LabError> {
        let mut devtools = self.lock();
        let doing = format!("pressing {key}");
        let Some(mut event) = key_event(key) else {
            return Err(devtools.error(&doing, "there is no such key".to_owned()));
        };
        event["type"] = json!("keyDown");
        devtools.call("Input.dispatchKeyEvent", event.clone())?;
        event["type"] = json!("keyUp");
        devtools.call("Input.dispatchKeyEvent", event).map(drop)
    }

    /// The element that has the keyboard's focus, as `TAG#ID LABEL`: `button#stop Stop`. Empty if
    /// none has it.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn focused(&self) -> Result<String, LabError> {
        let focused = self.evaluate(FOCUSED)?;
        Ok(focused.as_str().unwrap_or_default().to_owned())
    }
}

/// The arguments of `Input.dispatchKeyEvent`, without the type.
fn key_event(key: &str) -> Option<Value> {
    let mut modifiers = 0;
    let mut name = key;
    // `+` is a key, too.
    while let Some((modifier, rest)) = name.split_once('+').filter(|(_, rest)| !rest.is_empty()) {
        modifiers |= match modifier {
            "Alt" => 1,
            "Control" => 2,
            "Meta" => 4,
            "Shift" => 8,
            _ => return None,
        };
        name = rest;
    }
    // Name, code, number, and the text that it enters.
    let (key, code, number, text) = match name {
        "Tab" => ("Tab", "Tab".to_owned(), 9, None),
        "Enter" => ("Enter", "Enter".to_owned(), 13, Some("\r")),
        "Space" => (" ", "Space".to_owned(), 32, Some(" ")),
        "Escape" | "Backspace" | "Delete" | "Home" | "End" | "PageUp" | "PageDown"
        | "ArrowLeft" | "ArrowUp" | "ArrowRight" | "ArrowDown" => {
            let number = match name {
                "Backspace" => 8,
                "Escape" => 27,
                "PageUp" => 33,
                "PageDown" => 34,
                "End" => 35,
                "Home" => 36,
                "ArrowLeft" => 37,
                "ArrowUp" => 38,
                "ArrowRight" => 39,
                "ArrowDown" => 40,
                _ => 46,
            };
            (name, name.to_owned(), number, None)
        }
        _ => {
            let mut characters = name.chars();
            let character = characters.next().filter(|_| characters.next().is_none())?;
            let upper = character.to_ascii_uppercase();
            let (code, number) = match upper {
                'A'..='Z' => (format!("Key{upper}"), u32::from(upper)),
                '0'..='9' => (format!("Digit{upper}"), u32::from(upper)),
                _ => (String::new(), 0),
            };
            (name, code, number, Some(name))
        }
    };
    let mut event = json!({
        "modifiers": modifiers,
        "key": key,
        "code": code,
        "windowsVirtualKeyCode": number,
    });
    // With another modifier than Shift, a key enters nothing.
    if let Some(text) = text.filter(|_| modifiers & !8 == 0) {
        event["text"] = json!(text);
    }
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_modifiers_numbers_and_text() {
        let event = key_event("Shift+Tab").unwrap();
        assert_eq!(
            (&event["modifiers"], &event["key"]),
            (&json!(8), &json!("Tab"))
        );
        assert_eq!(event.get("text"), None);
        let event = key_event("a").unwrap();
        assert_eq!(
            (&event["code"], &event["text"]),
            (&json!("KeyA"), &json!("a"))
        );
        let event = key_event("Control+Alt+a").unwrap();
        assert_eq!((&event["modifiers"], event.get("text")), (&json!(3), None));
        assert_eq!(key_event("+").unwrap()["text"], "+");
        assert_eq!(key_event("Shift++").unwrap()["text"], "+");
    }

    #[test]
    fn an_unknown_key_is_refused() {
        for key in ["", "Tabulator", "Hyper+a", "Shift+", "ab"] {
            assert_eq!(key_event(key), None, "{key}");
        }
    }
}
