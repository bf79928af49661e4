// asv draws curves only. This shows a single value as a dot, and says why a box is empty.
(function () {
  var plot = $.plot;
  function values(series) {
    return (series.data || []).filter(function (point) {
      return point && point[1] !== null && isFinite(point[1]);
    });
  }
  $.plot = $.extend(function (place, data, options) {
    var most = 0;
    data.forEach(function (series) {
      var found = values(series).length;
      most = Math.max(most, found);
      if (found === 1) {
        series.points = $.extend({ show: true, radius: 4, fill: true }, series.points);
      }
    });
    var drawn = plot(place, data, options);
    if (most === 0) {
      $(place).append('<div class="empty-box">n/a at every commit: the commit or this machine lacks something</div>');
    }
    return drawn;
  }, plot);
  // asv ignores that a benchmark has no file of values: nothing was measured in this configuration.
  $(document).ajaxError(function (event, request, settings) {
    var name = /graphs\/summary\/(.+)\.json/.exec(decodeURIComponent(settings.url || ""));
    if (name) {
      $(document.getElementById("summarygrid-" + name[1])).append(
        '<div class="empty-box">not measured: this profile or machine leaves it out</div>'
      );
    }
  });
  $("head").append(
    "<style>.empty-box { position: absolute; inset: 0; display: flex; align-items: center; justify-content: center;" +
      " padding: .5em; text-align: center; color: #555d67; font-size: 12px; }</style>"
  );
})();
