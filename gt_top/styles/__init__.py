"""How gt-top looks: palettes (what colour means what) and the few lines of CSS that place widgets."""
