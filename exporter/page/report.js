// The language switch of the offline report. It is put into the file itself.
(() => {
  const other = document.getElementById("language");
  other?.addEventListener("click", () => {
    const zh = document.documentElement.lang === "zh";
    document.documentElement.lang = zh ? "en" : "zh";
    other.textContent = zh ? "中文" : "English";
  });
})();
