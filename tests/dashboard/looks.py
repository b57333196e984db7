"""What can be measured of how a page looks."""

# The contrast of every text against what is behind it; WCAG's formula. Charts keep to the same tokens.
_CONTRAST = """() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const over = (top, below) => ({
    r: top.r * top.a + below.r * (1 - top.a),
    g: top.g * top.a + below.g * (1 - top.a),
    b: top.b * top.a + below.b * (1 - top.a),
    a: 1,
  });
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.push(parse(getComputedStyle(each).backgroundColor));
      if (layers[layers.length - 1].a === 1) break;
    }
    return layers.reduceRight((below, top) => over(top, below), { r: 255, g: 255, b: 255, a: 1 });
  };
  const luminance = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].filter((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own.length || !element.getClientRects().length || element.closest("script, noscript, option")) {
      continue;
    }
    const style = getComputedStyle(element);
    const isSvg = element instanceof SVGElement;
    const ground = behind(element.closest("svg") ? element.closest("svg").parentElement : element);
    const ink = over(parse(isSvg ? style.fill : style.color), ground);
    const [light, dark] = [luminance(ink), luminance(ground)].sort((a, b) => b - a);
    found.push([element.textContent.trim().slice(0, 40), (light + 0.05) / (dark + 0.05)]);
  }
  return found;
}"""


def too_faint(page, least=4.5):
    """The texts of a page whose contrast is less than WCAG's AA asks of small text."""
    measured = page.evaluate(_CONTRAST)
    assert len(measured) > 20, "there should be more to read"
    return [(text, round(ratio, 2)) for text, ratio in measured if ratio < least]


def tab_stops(page, most=60):
    """What the Tab key reaches, in order, each by its id, its label or its words."""
    stops = []
    for _ in range(most):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => {
              const at = document.activeElement;
              if (!at || at === document.body) return null;
              const box = at.getBoundingClientRect();
              return { name: at.id || at.getAttribute("aria-label") || at.textContent.trim(),
                       ring: getComputedStyle(at).outlineStyle, seen: box.width > 0 && box.height > 0 };
            }"""
        )
        if stop is None:
            break
        stops.append(stop)
    return stops


def traces(page, chart):
    """The curves of a chart as plotly holds them: name → (x, y)."""
    found = page.eval_on_selector(
        chart, "chart => chart.data.filter((t) => t.name).map((t) => [t.name, [...t.x], [...t.y]])"
    )
    return {name: (x, y) for name, x, y in found}
